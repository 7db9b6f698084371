// Attention over paged keys and values of bf16, heads of HEAD_DIM.
//
// Keys go in blocks of 256 counted from position 0. Each block yields on its own (max, sum of weights, weighted values); blocks are folded
// in order by one function. One block of threads works on a tile: up to 8 queries (rows of one span times the query heads that share a K/V
// head), each with its own limits, none of which changes another's bits. With few rows every key block is a block of threads of its own and a
// second kernel folds; with many, one block of threads goes over the key blocks and folds as it goes: the same functions, the same bits.
//
// A score is a fused chain over the head in order. Weights of a block are added over lanes by halves, then over warps in order, a key's
// place in the block deciding its lane. Values: keys of a block are cut into SEGMENTS, a fused chain over each in order, then added in order.
// What a query does not see is left out, never multiplied by zero: it may be damaged.

constexpr int D = HEAD_DIM, M = 8, BLOCK = 256, PAGE = 64;
constexpr int SEGMENTS = BLOCK / (D / 2), KEYS = (BLOCK + SEGMENTS - 1) / SEGMENTS;
constexpr int HELD = (M * D + BLOCK - 1) / BLOCK;  // folded values a thread holds

struct Tile { u32 first_row, from, count, table, first_block, blocks, partials, unused; };

struct Limits { int low[M], high[M]; };  // positions a query sees, both included

// Shared memory of a block of threads.
struct Work {
    float q[M][D], p[M][BLOCK], parts[M * D * SEGMENTS];
    float warps[M][BLOCK / 32], max[M], sum[M], keep[M], take[M], running_max[M], running_sum[M];
    Limits limits;
};

__device__ __forceinline__ bool sees(const Limits &limits, int m, int block) {
    return limits.low[m] < (block + 1) * BLOCK && limits.high[m] >= block * BLOCK;
}

__device__ void limits_of(Limits &limits, const Tile &tile, const u32 *positions, u32 share, u32 window) {
    if (threadIdx.x < tile.count) {
        const int position = positions[tile.first_row + (tile.from + threadIdx.x) / share];
        limits.high[threadIdx.x] = position;
        limits.low[threadIdx.x] = window && position + 1 > (int)window ? position + 1 - (int)window : 0;
    }
}

// Weights of one key block: max and sum of each query, its weights in `p`, -1 where it does not see the key.
__device__ void weights_of(Work &w, const Tile &tile, int block, const u16 *keys, const u32 *table, u32 kv_heads, u32 head, float scale) {
    const int key = block * BLOCK + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int low = 0x7fffffff, high = -1;
    for (int m = 0; m < tile.count; m++) low = min(low, w.limits.low[m]), high = max(high, w.limits.high[m]);
    float score[M] = {};
    if (key >= low && key <= high) {
        const u16 *k = keys + (((u64)table[key / PAGE] * kv_heads + head) * PAGE + key % PAGE) * D;
#pragma unroll 4
        for (int d = 0; d < D; d += 8) {
            const uint4 eight = *(const uint4 *)(k + d);
            float v[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 two = ((const u32 *)&eight)[i];
                v[2 * i] = bf16_value(two & 0xffff), v[2 * i + 1] = __uint_as_float(two & 0xffff0000u);
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (m >= tile.count) break;
                const float4 a = *(const float4 *)&w.q[m][d], b = *(const float4 *)&w.q[m][d + 4];
                float s = score[m];
                s = fmaf(a.x, v[0], s), s = fmaf(a.y, v[1], s), s = fmaf(a.z, v[2], s), s = fmaf(a.w, v[3], s);
                s = fmaf(b.x, v[4], s), s = fmaf(b.y, v[5], s), s = fmaf(b.z, v[6], s), s = fmaf(b.w, v[7], s);
                score[m] = s;
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        if (m >= tile.count) break;
        const bool seen = key >= w.limits.low[m] && key <= w.limits.high[m];
        score[m] = seen ? score[m] * scale : __uint_as_float(0xff800000u);
        const float most = warp_max(score[m]);
        if (lane == 0) w.warps[m][warp] = most;
    }
    __syncthreads();
    if (threadIdx.x < tile.count) {
        float most = w.warps[threadIdx.x][0];
        for (int i = 1; i < BLOCK / 32; i++) most = fmaxf(most, w.warps[threadIdx.x][i]);
        w.max[threadIdx.x] = most;
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; m++) {
        if (m >= tile.count) break;
        const bool seen = key >= w.limits.low[m] && key <= w.limits.high[m];
        const float p = seen ? expf(score[m] - w.max[m]) : 0.f;
        w.p[m][threadIdx.x] = seen ? p : -1.f;
        const float sum = warp_sum(p);
        if (lane == 0) w.warps[m][warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < tile.count) {
        float sum = w.warps[threadIdx.x][0];
        for (int i = 1; i < BLOCK / 32; i++) sum += w.warps[threadIdx.x][i];
        w.sum[threadIdx.x] = sum;
    }
}

// Weighted values of one key block, before the segments are added: `parts` [SEGMENTS][M][D].
__device__ void values_of(Work &w, const Tile &tile, int block, const u16 *values, const u32 *table, u32 kv_heads, u32 head) {
    const int segment = threadIdx.x / (D / 2), d = threadIdx.x % (D / 2) * 2;
    if (segment >= SEGMENTS) return;
    int low = 0x7fffffff, high = -1;
    for (int m = 0; m < tile.count; m++) low = min(low, w.limits.low[m]), high = max(high, w.limits.high[m]);
    const int from = max(segment * KEYS, low - block * BLOCK), to = min(min((segment + 1) * KEYS, BLOCK), high + 1 - block * BLOCK);
    float sum[M][2] = {};
#pragma unroll 4
    for (int j = from; j < to; j++) {
        const int key = block * BLOCK + j;
        const u32 two = *(const u32 *)(values + (((u64)table[key / PAGE] * kv_heads + head) * PAGE + key % PAGE) * D + d);
        const float a = bf16_value(two & 0xffff), b = __uint_as_float(two & 0xffff0000u);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m >= tile.count) break;
            const float p = w.p[m][j];
            if (p < 0.f) continue;
            sum[m][0] = fmaf(p, a, sum[m][0]), sum[m][1] = fmaf(p, b, sum[m][1]);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        if (m >= tile.count) break;
        *(float2 *)&w.parts[(segment * M + m) * D + d] = make_float2(sum[m][0], sum[m][1]);
    }
}

__device__ __forceinline__ float part_sum(const Work &w, int m, int d) {
    float sum = w.parts[m * D + d];
#pragma unroll
    for (int s = 1; s < SEGMENTS; s++) sum += w.parts[(s * M + m) * D + d];
    return sum;
}

// What a block's result is times, and what came before is times: both rescaled to the larger maximum.
struct Fold { float max, keep, take, sum; };
__device__ __forceinline__ Fold fold(float old_max, float old_sum, float max, float sum) {
    const float most = fmaxf(old_max, max), keep = expf(old_max - most), take = expf(max - most);
    return {most, keep, take, fmaf(old_sum, keep, sum * take)};
}
__device__ __forceinline__ float folded(float old, float keep, float next, float take) { return fmaf(old, keep, next * take); }

// `items` are pairs (tile, block of the tile), or null: then a block of threads goes over all blocks of its tile. Partial results are
// [partial][kv_heads][M][D + 2].
EXPORT __launch_bounds__(BLOCK) attend(const float *q, const u16 *keys, const u16 *values, const u32 *positions, const u32 *tables, const Tile *tiles,
                                       const u32 *items, float *partials, float *out, u32 heads, u32 kv_heads, u32 window, float scale) {
    extern __shared__ float4 memory[];
    Work &w = *(Work *)memory;
    const u32 head = blockIdx.y, share = heads / kv_heads;
    const Tile tile = tiles[items ? items[2 * blockIdx.x] : blockIdx.x];
    const u32 *table = tables + tile.table;
    limits_of(w.limits, tile, positions, share, window);
    for (int e = threadIdx.x; e < tile.count * D; e += BLOCK) {
        const u32 m = e / D, index = tile.from + m;
        w.q[m][e % D] = q[((u64)(tile.first_row + index / share) * heads + head * share + index % share) * D + e % D];
    }
    __syncthreads();
    if (items) {
        const int nth = items[2 * blockIdx.x + 1], block = tile.first_block + nth;
        weights_of(w, tile, block, keys, table, kv_heads, head, scale);
        values_of(w, tile, block, values, table, kv_heads, head);
        __syncthreads();
        float *own = partials + ((u64)(tile.partials + nth) * kv_heads + head) * M * (D + 2);
        for (int e = threadIdx.x; e < tile.count * D; e += BLOCK) own[e / D * (D + 2) + e % D] = part_sum(w, e / D, e % D);
        if (threadIdx.x < tile.count) own[threadIdx.x * (D + 2) + D] = w.max[threadIdx.x], own[threadIdx.x * (D + 2) + D + 1] = w.sum[threadIdx.x];
        return;
    }
    float held[HELD];
    for (u32 nth = 0; nth < tile.blocks; nth++) {
        const int block = tile.first_block + nth;
        weights_of(w, tile, block, keys, table, kv_heads, head, scale);
        values_of(w, tile, block, values, table, kv_heads, head);
        if (threadIdx.x < tile.count && sees(w.limits, threadIdx.x, block)) {
            const int m = threadIdx.x;
            if (w.limits.low[m] / BLOCK == block) {
                w.running_max[m] = w.max[m], w.running_sum[m] = w.sum[m];
            } else {
                const Fold f = fold(w.running_max[m], w.running_sum[m], w.max[m], w.sum[m]);
                w.running_max[m] = f.max, w.running_sum[m] = f.sum, w.keep[m] = f.keep, w.take[m] = f.take;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int e = threadIdx.x + i * BLOCK, m = e / D;
            if (e >= tile.count * D || !sees(w.limits, m, block)) continue;
            const float next = part_sum(w, m, e % D);
            held[i] = w.limits.low[m] / BLOCK == block ? next : folded(held[i], w.keep[m], next, w.take[m]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int e = threadIdx.x + i * BLOCK;
        if (e >= tile.count * D) continue;
        const u32 m = e / D, index = tile.from + m;
        out[((u64)(tile.first_row + index / share) * heads + head * share + index % share) * D + e % D] = held[i] / w.running_sum[m];
    }
}

// Folds the partial results of a tile: block x is a tile, y a K/V head. With `prepared`, what comes out is also stored as the tensor
// cores read it, for blocks of 8 NT rows: a head is then a whole number of groups of 128.
EXPORT __launch_bounds__(BLOCK) attend_fold(const u32 *positions, const Tile *tiles, const float *partials, float *out, u32 heads, u32 kv_heads, u32 window,
                                            uint4 *prepared, float *sums, u32 nt) {
    __shared__ Limits limits;
    __shared__ float values[M * D];
    const u32 head = blockIdx.y, share = heads / kv_heads;
    const Tile tile = tiles[blockIdx.x];
    limits_of(limits, tile, positions, share, window);
    __syncthreads();
    for (int e = threadIdx.x; e < tile.count * D; e += BLOCK) {
        const u32 m = e / D, d = e % D, index = tile.from + m;
        float most = 0.f, sum = 0.f, value = 0.f;
        for (u32 nth = 0; nth < tile.blocks; nth++) {
            const int block = tile.first_block + nth;
            if (!sees(limits, m, block)) continue;
            const float *own = partials + (((u64)(tile.partials + nth) * kv_heads + head) * M + m) * (D + 2);
            if (limits.low[m] / BLOCK == block) {
                most = own[D], sum = own[D + 1], value = own[d];
            } else {
                const Fold f = fold(most, sum, own[D], own[D + 1]);
                most = f.max, sum = f.sum, value = folded(value, f.keep, own[d], f.take);
            }
        }
        values[e] = value / sum;
        out[((u64)(tile.first_row + index / share) * heads + head * share + index % share) * D + d] = value / sum;
    }
    if (D % 128 != 0 || !prepared) return;
    __syncthreads();
    constexpr int FOURS = D / 16;  // lanes that store a head
    const u32 supers = (heads * D + 255) / 256;
    for (int e = threadIdx.x; e / 32 * 32 < tile.count * FOURS; e += BLOCK) {
        const bool active = e < tile.count * FOURS;
        const u32 m = active ? e / FOURS : 0, group = e % FOURS / 4, t = e % 4, index = tile.from + m;
        float v[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const float4 four = *(const float4 *)&values[m * D + group * 64 + s * 16 + t * 4];
            v[s][0] = four.x, v[s][1] = four.y, v[s][2] = four.z, v[s][3] = four.w;
        }
        const u32 row = tile.first_row + index / share, at = (head * share + index % share) * (D / 64) + group;
        store_prepared(v, prepared, sums, row, at, supers, nt, t, active);
    }
}

// Rounds K and V [rows, kv_heads * D] into the pages: `slots` are page * PAGE + place. Two values a thread.
EXPORT append(const float *k, const float *v, const u32 *slots, u16 *keys, u16 *values, u32 kv_heads, u64 n) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const u64 at = 2 * i, row = at / (kv_heads * D);
    const u32 head = at % (kv_heads * D) / D, d = at % D, slot = slots[row];
    const u64 to = (((u64)(slot / PAGE) * kv_heads + head) * PAGE + slot % PAGE) * D + d;
    *(u32 *)(keys + to) = pack_bf16(k[at], k[at + 1]);
    *(u32 *)(values + to) = pack_bf16(v[at], v[at + 1]);
}
