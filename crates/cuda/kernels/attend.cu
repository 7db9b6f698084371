// Attention over paged keys and values of bf16, heads of HEAD_DIM, by tensor cores.
//
// Keys go in blocks of 256 counted from position 0. Each block yields on its own (max, sum of weights, weighted values); blocks are folded
// in order by one function. One block of threads works on a tile: up to 16 queries (rows of one span times the query heads that share a K/V
// head), each with its own limits, none of which changes another's bits: a query is a row of every mma. With few rows every key block is a
// block of threads of its own, and the one that comes last folds, or a second kernel where there is more to fold than that; with many, one block
// of threads goes over the key blocks and folds as it goes: the same functions, the same bits.
//
// Queries and weights are f32, and enter as two bf16 each: rounded, and what the rounding left (16 bits of significand together). A score is a
// chain of mma over the head, both parts after each other; a weighted value the same over the 256 keys of a block. Weights of a block are added
// by lane, then over four lanes by halves, then over warps in order, a key's place in the block deciding its lane.
//
// Pages: keys [page][kv_heads][8][chunks of 32 places of the head][8 keys][32], so that what a warp reads at once for an mma lies together: 512
// bytes; the last chunk of a head that is no multiple of 32 has fewer places, and a page is 64 D values whatever D is. Values
// [page][kv_heads][2][D][32], so that an mma reads 32 keys of one place of the head without a detour; `append_key` and `append_value` put
// them so. Flags [page][kv_heads][64]: 0, or NaN where the value row is damaged. A damaged row is stored as zeros: a weight of zero would not
// keep NaN out of a sum, and not every query of a tile sees every key. Those that do see it get NaN by the flag.

constexpr int D = HEAD_DIM, M = 16, BLOCK = 256, PAGE = 64, WARPS = 8;
constexpr int FOLDED = 16;                        // most key blocks that the last block of threads folds
constexpr int TOGETHER = 8;                       // partial results of a value that are on their way at once
constexpr int CHUNKS = (D + 31) / 32;             // of 32 places of a head: two steps of the mma
constexpr int COLUMNS = (D / 8 + WARPS - 1) / WARPS;  // groups of 8 places of the head that a warp sums values for

// How many blocks of threads have room on a processor, and how many chunks of keys and groups of values each has on their way: as much as registers
// allow without spilling, found by looking at what the compiler made of it.
constexpr int FEW_ROOM = 2, FEW_CHUNKS = 4, FEW_GROUPS = COLUMNS > 2 ? 16 / COLUMNS : 8;
constexpr int MANY_ROOM = D <= 256 && D % 64 == 0 ? 3 : 2, MANY_CHUNKS = 2, MANY_GROUPS = COLUMNS > 3 ? 2 : 1;
constexpr int TILE_ROOM = D <= 128 ? 3 : D <= 256 ? 2 : 1, TILE_CHUNKS = D <= 128 ? 1 : 2, TILE_GROUPS = 1;

struct Tile { u32 first_row, from, count, table, first_block, blocks, partials, pages; };

struct Limits { int low[M], high[M]; };  // positions a query sees, both included

// Shared memory of a block of threads: operands as lanes read them, first the rounded part, then what is left.
struct Work {
    uint4 q[CHUNKS][2][2][32], p[BLOCK / 16][2][32];
    float most[M][WARPS], sums[M][WARPS], max[M], sum[M], keep[M], take[M], running_max[M], running_sum[M];
    u32 pages[BLOCK / PAGE];
    Limits limits;
};

// Two floats as two bf16 each.
__device__ __forceinline__ void split(float a, float b, u32 &high, u32 &low) {
    high = pack_bf16(a, b);
    low = pack_bf16(a - bf16_value(high & 0xffff), b - bf16_value(high >> 16));
}

__device__ __forceinline__ bool sees(const Limits &limits, int m, int block) {
    return limits.low[m] < (block + 1) * BLOCK && limits.high[m] >= block * BLOCK;
}

// The positions each query sees; queries beyond the tile's see nothing.
__device__ __forceinline__ void limits_of(Limits &limits, const Tile &tile, const u32 *positions, u32 share, u32 window) {
    if (threadIdx.x >= M) return;
    int low = 1, high = -1;
    if (threadIdx.x < tile.count) {
        high = positions[tile.first_row + (tile.from + threadIdx.x) / share];
        low = window && high + 1 > (int)window ? high + 1 - (int)window : 0;
    }
    limits.high[threadIdx.x] = high, limits.low[threadIdx.x] = low;
}

// Weights of one key block into `p`; max and sum of each query. Keys of AHEAD chunks of 32 places of the head are on their way at once.
template <int AHEAD>
__device__ __forceinline__ void weights_of(Work &w, int block, int low, int high, const u16 *keys, const float *flags, u32 kv_heads, u32 head, float scale) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, base = block * BLOCK + warp * 32;
    float s[4][4] = {};
    const float none = __uint_as_float(0xff800000u);
    if (base <= high && base + 31 >= low) {
        const u64 row = ((u64)w.pages[warp / 2] * kv_heads + head) * PAGE + base % PAGE;
        const u16 *k = keys + row * D;
        float2 flag[4];  // asked for now, needed after the mma
#pragma unroll
        for (int i = 0; i < 4; i++) flag[i] = *(const float2 *)(flags + row + 8 * i + 2 * t);
        uint4 b[AHEAD][4];
        auto load = [&](int c) {
            const int width = D % 32 == 0 ? 32 : min(32, D - 32 * c);
#pragma unroll
            for (int i = 0; i < 4; i++)
                b[c % AHEAD][i] = 8 * t < width ? *(const uint4 *)(k + 8 * i * D + 256 * c + g * width + 8 * t) : make_uint4(0, 0, 0, 0);
        };
#pragma unroll
        for (int c = 0; c < AHEAD && c < CHUNKS; c++) load(c);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const uint4 a = w.q[c][e][part][lane];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint4 &key = b[c % AHEAD][i];
                        mma(s[i], a.x, a.y, a.z, a.w, e ? key.z : key.x, e ? key.w : key.y);
                    }
                }
            if (c + AHEAD < CHUNKS) load(c + AHEAD);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = base + 8 * i + 2 * t + e % 2, m = g + e / 2 * 8;
                const bool seen = key >= w.limits.low[m] && key <= w.limits.high[m];
                s[i][e] = seen ? s[i][e] * scale + (e % 2 ? flag[i].y : flag[i].x) : none;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = none;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = none;
#pragma unroll
        for (int i = 0; i < 4; i++) most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (t == 0) w.most[g + 8 * half][warp] = most;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Whoever needs a query's maximum looks for it: nobody waits for others to write it.
        const int m = g + 8 * half;
        float most = w.most[m][0];
#pragma unroll
        for (int i = 1; i < WARPS; i++) most = fmaxf(most, w.most[m][i]);
        if (warp == 0 && t == 0) w.max[m] = most;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = base + 8 * i + 2 * t + e;
                const bool seen = key >= w.limits.low[m] && key <= w.limits.high[m];
                float &v = s[i][2 * half + e];
                v = seen ? expf(v - most) : 0.f;
                sum += v;
            }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) w.sums[m][warp] = sum;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint4 high, low;
        split(s[i][0], s[i][1], high.x, low.x), split(s[i][2], s[i][3], high.y, low.y);
        split(s[i + 1][0], s[i + 1][1], high.z, low.z), split(s[i + 1][2], s[i + 1][3], high.w, low.w);
        w.p[2 * warp + i / 2][0][lane] = high, w.p[2 * warp + i / 2][1][lane] = low;
    }
    __syncthreads();
    if (threadIdx.x < M) {
        float sum = w.sums[threadIdx.x][0];
#pragma unroll
        for (int i = 1; i < WARPS; i++) sum += w.sums[threadIdx.x][i];
        w.sum[threadIdx.x] = sum;
    }
}

// Weighted values of one key block: column group j of a warp is places 8 (warp + 8 j) and on of the head. Values of AHEAD groups of 32 keys are on
// their way at once.
template <int AHEAD>
__device__ __forceinline__ void values_of(const Work &w, int block, int low, int high, const u16 *values, u32 kv_heads, u32 head, float o[COLUMNS][4]) {
    constexpr int GROUPS = BLOCK / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[j][e] = 0.f;
    // Groups of 32 keys that no query sees have weights of zero: leaving them out changes no bit.
    const int from = max(low - block * BLOCK, 0) / 32, to = min(high - block * BLOCK, BLOCK - 1) / 32;
    uint4 b[AHEAD][COLUMNS];
    auto load = [&](int group) {
        const u16 *v = values + ((((u64)w.pages[group / 2] * kv_heads + head) * 2 + group % 2) * D + lane / 4) * 32 + lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            b[group % AHEAD][j] = D % (8 * WARPS) == 0 || warp + WARPS * j < D / 8 ? *(const uint4 *)(v + 8 * 32 * (warp + WARPS * j)) : make_uint4(0, 0, 0, 0);
    };
    auto add = [&](int group) {
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const uint4 a = w.p[2 * group + half][part][lane];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    const uint4 &v = b[group % AHEAD][j];
                    mma(o[j], a.x, a.y, a.z, a.w, half ? v.z : v.x, half ? v.w : v.y);
                }
            }
    };
    if (AHEAD == 1) {  // a loop takes fewer registers, and its loads are for the compiler to place
#pragma unroll 4
        for (int group = from; group <= to; group++) load(group), add(group);
        return;
    }
    auto inside = [&](int group) { return group >= from && group <= to; };
#pragma unroll
    for (int group = 0; group < AHEAD; group++)
        if (inside(group)) load(group);
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        if (inside(group)) add(group);
        if (group + AHEAD < GROUPS && inside(group + AHEAD)) load(group + AHEAD);
    }
}

// Asks for the block's keys and values before anything else waits: half a page of either for each warp, 128 bytes a lane at a time.
__device__ __forceinline__ void ask(const Work &w, int block, int low, int high, const u16 *keys, const u16 *values, u32 kv_heads, u32 head) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = block * BLOCK + warp * 32;
    if (base > high || base + 31 < low) return;
    const u64 at = (((u64)w.pages[warp / 2] * kv_heads + head) * 2 + warp % 2) * 32 * D;
    for (int i = lane; i < D / 2; i += 32) prefetch(keys + at + 64 * i);
    for (int i = lane; i < D / 2; i += 32) prefetch(values + at + 64 * i);
}

// What a block's result is times, and what came before is times: both rescaled to the larger maximum.
struct Fold { float max, keep, take, sum; };
__device__ __forceinline__ Fold fold(float old_max, float old_sum, float max, float sum) {
    const float most = fmaxf(old_max, max), keep = expf(old_max - most), take = expf(max - most);
    return {most, keep, take, fmaf(old_sum, keep, sum * take)};
}
__device__ __forceinline__ float folded(float old, float keep, float next, float take) { return fmaf(old, keep, next * take); }

// Folds the partial results of a tile, by the whole block of threads, after the operands in `w` were used. With `prepared`, what comes out is
// also stored as the tensor cores read it, for blocks of 8 NT rows: a head is then a whole number of groups of 128.
__device__ __forceinline__ void fold_tile(Work &w, const Tile &tile, const float *partials, float *out, u32 heads, u32 kv_heads, u32 head, uint4 *prepared, float *sums, u32 nt) {
    float2(*factors)[FOLDED] = (float2(*)[FOLDED])w.p;
    float *values = (float *)w.q;  // [M][D]
    const u32 share = heads / kv_heads;
    const u64 step = (u64)kv_heads * M * (D + 2);
    const float *own = partials + ((u64)tile.partials * kv_heads + head) * M * (D + 2);
    auto begin = [&](int m) { return w.limits.low[m] / BLOCK - (int)tile.first_block; };
    auto end = [&](int m) { return w.limits.high[m] / BLOCK - (int)tile.first_block; };
    for (u32 i = threadIdx.x; i < tile.count * tile.blocks; i += BLOCK) {
        const int m = i / tile.blocks, nth = i % tile.blocks;
        if (nth >= begin(m) && nth <= end(m)) factors[m][nth] = fresh((const float2 *)(own + nth * step + m * (D + 2) + D));
    }
    __syncthreads();
    if (threadIdx.x < tile.count) {
        const int m = threadIdx.x, from = begin(m), to = end(m);
        float most = factors[m][from].x, sum = factors[m][from].y;
        for (int nth = from + 1; nth <= to; nth++) {
            const Fold f = fold(most, sum, factors[m][nth].x, factors[m][nth].y);
            most = f.max, sum = f.sum, factors[m][nth] = make_float2(f.keep, f.take);
        }
        w.running_sum[m] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (int)tile.count * D / 2; i += BLOCK) {
        const int m = 2 * i / D, d = 2 * i % D, from = begin(m), to = end(m);
        const float *at = own + m * (D + 2) + d;
        float2 value = make_float2(0.f, 0.f);
        for (int first = from; first <= to; first += TOGETHER) {
            float2 part[TOGETHER];  // asked for at once
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (first + j <= to) part[j] = fresh((const float2 *)(at + (first + j) * step));
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int nth = first + j;
                if (nth > to) continue;
                const float2 f = factors[m][nth];
                value.x = nth == from ? part[j].x : folded(value.x, f.x, part[j].x, f.y);
                value.y = nth == from ? part[j].y : folded(value.y, f.x, part[j].y, f.y);
            }
        }
        value.x = value.x / w.running_sum[m], value.y = value.y / w.running_sum[m];
        *(float2 *)&values[2 * i] = value;
        const u32 row = tile.first_row + (tile.from + m) / share, h = head * share + (tile.from + m) % share;
        *(float2 *)&out[((u64)row * heads + h) * D + d] = value;
    }
    if (D % 128 != 0 || !prepared) return;
    __syncthreads();
    constexpr u32 LANES = D / 16;  // of a query: four for each 64 values
    for (u32 i = threadIdx.x; i / 32 * 32 < tile.count * LANES; i += BLOCK) {
        const bool active = i < tile.count * LANES;
        const u32 m = active ? i / LANES : 0, group = i % LANES / 4, t = i % 4;
        float v[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const float4 four = *(const float4 *)&values[m * D + group * 64 + s * 16 + t * 4];
            v[s][0] = four.x, v[s][1] = four.y, v[s][2] = four.z, v[s][3] = four.w;
        }
        const u32 row = tile.first_row + (tile.from + m) / share, h = head * share + (tile.from + m) % share;
        store_prepared(v, prepared, sums, row, h * (D / 64) + group, (heads * D + 255) / 256, nt, t, active);
    }
}

// The lowest and the highest position that a query of the tile sees.
__device__ __forceinline__ void range_of(const Limits &limits, const Tile &tile, int &low, int &high) {
    low = 0x7fffffff, high = -1;
    for (int m = 0; m < tile.count; m++) low = min(low, limits.low[m]), high = max(high, limits.high[m]);
}

// The pages of a key block, as far as a query sees them.
__device__ __forceinline__ void pages_of(Work &w, int block, int low, int high, const u32 *table) {
    if (threadIdx.x < BLOCK / PAGE) {
        const int from = block * BLOCK + threadIdx.x * PAGE;
        w.pages[threadIdx.x] = from <= high && from + PAGE > low ? table[from / PAGE] : 0;
    }
    __syncthreads();
}

// Where a query of a tile begins in `q` and `out`.
__device__ __forceinline__ u64 place_of(const Tile &tile, u32 m, u32 heads, u32 share, u32 head) {
    return ((u64)(tile.first_row + (tile.from + m) / share) * heads + head * share + (tile.from + m) % share) * D;
}

// Queries of a tile as operands.
__device__ __forceinline__ void queries_of(Work &w, const Tile &tile, const float *q, u32 heads, u32 share, u32 head) {
    for (int item = threadIdx.x; item < CHUNKS * 2 * 32; item += BLOCK) {
        const int l = item % 32, e = item / 32 % 2, c = item / 64, d = 32 * c + l % 4 * 8 + 4 * e;
        uint4 high, low;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = l / 4 + 8 * half;
            const float4 v = m < tile.count && d < D ? *(const float4 *)(q + place_of(tile, m, heads, share, head) + d) : make_float4(0.f, 0.f, 0.f, 0.f);
            split(v.x, v.y, half ? high.y : high.x, half ? low.y : low.x);
            split(v.z, v.w, half ? high.w : high.z, half ? low.w : low.z);
        }
        w.q[c][e][0][l] = high, w.q[c][e][1][l] = low;
    }
    __syncthreads();
}

// Partial results, [partial][kv_heads][M][D + 2], of `items`: pairs (tile, block of the tile). With `turns`, zeros [tile][kv_heads] that are zeros
// again afterwards, the last block of threads of a tile's head folds: up to FOLDED key blocks.
template <int CHUNKS_AHEAD, int GROUPS_AHEAD>
__device__ __forceinline__ void item(Work &w, const float *q, const u16 *keys, const u16 *values, const float *flags, const u32 *positions, const u32 *tables, const Tile *tiles,
                                     const u32 *items, float *partials, float *out, u32 heads, u32 kv_heads, u32 window, float scale, u32 *turns, uint4 *prepared, float *sums, u32 nt) {
    const u32 head = blockIdx.y, share = heads / kv_heads, nth = items[2 * blockIdx.x + 1];
    const Tile tile = tiles[items[2 * blockIdx.x]];
    const int block = tile.first_block + nth;
    limits_of(w.limits, tile, positions, share, window);
    __syncthreads();
    int low, high;
    range_of(w.limits, tile, low, high);
    pages_of(w, block, low, high, tables + tile.table);
    // What the host brought, and where keys and values lie, is known before the launches before this one have ended: they are on their way when the
    // queries come. Those that are only now being written are asked for in vain.
    ask(w, block, low, high, keys, values, kv_heads, head);
    others_may_begin();  // only now: they ask for weights, which would come first
    wait_for_others();
    queries_of(w, tile, q, heads, share, head);
    float o[COLUMNS][4];
    weights_of<CHUNKS_AHEAD>(w, block, low, high, keys, flags, kv_heads, head, scale);
    values_of<GROUPS_AHEAD>(w, block, low, high, values, kv_heads, head, o);
    __syncthreads();
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *own = partials + ((u64)(tile.partials + nth) * kv_heads + head) * M * (D + 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 m = g + 8 * half;
        if (m >= tile.count) continue;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int d = 8 * (warp + WARPS * j) + 2 * t;
            if (d < D) *(float2 *)(own + m * (D + 2) + d) = make_float2(o[j][2 * half], o[j][2 * half + 1]);
        }
    }
    if (threadIdx.x < tile.count) own[threadIdx.x * (D + 2) + D] = w.max[threadIdx.x], own[threadIdx.x * (D + 2) + D + 1] = w.sum[threadIdx.x];
    if (!turns) return;
    __threadfence();
    __syncthreads();
    u32 *turn = turns + items[2 * blockIdx.x] * kv_heads + head;
    if (threadIdx.x == 0) w.pages[0] = atomicAdd(turn, 1u);
    __syncthreads();
    if (w.pages[0] + 1 != tile.blocks) return;
    __threadfence();
    if (threadIdx.x == 0) *turn = 0;
    fold_tile(w, tile, partials, out, heads, kv_heads, head, prepared, sums, nt);
}

// Two of a kind: one for few blocks of threads, each alone on a processor or nearly so, which needs many loads on their way; one for so many that
// other blocks do while some wait, and registers decide how many have room.
#define ITEMS(NAME, ROOM, CHUNKS_AHEAD, GROUPS_AHEAD) \
    EXPORT __launch_bounds__(BLOCK, ROOM) NAME( \
        const float *q, const u16 *keys, const u16 *values, const float *flags, const u32 *positions, const u32 *tables, const Tile *tiles, const u32 *items, float *partials, \
        float *out, u32 heads, u32 kv_heads, u32 window, float scale, u32 *turns, uint4 *prepared, float *sums, u32 nt) { \
        SHARED_AT_LAUNCH(uint4, memory); \
        item<CHUNKS_AHEAD, GROUPS_AHEAD>(*(Work *)memory, q, keys, values, flags, positions, tables, tiles, items, partials, out, heads, kv_heads, window, scale, turns, prepared, sums, nt); \
    }

ITEMS(attend, FEW_ROOM, FEW_CHUNKS, FEW_GROUPS)
ITEMS(attend_many, MANY_ROOM, MANY_CHUNKS, MANY_GROUPS)

// A block of threads goes over all key blocks of its tile, and folds as it goes.
EXPORT __launch_bounds__(BLOCK, TILE_ROOM) attend_tiles(const float *q, const u16 *keys, const u16 *values, const float *flags, const u32 *positions, const u32 *tables, const Tile *tiles,
                                             float *out, u32 heads, u32 kv_heads, u32 window, float scale) {
    others_may_begin();
    SHARED_AT_LAUNCH(uint4, memory);
    Work &w = *(Work *)memory;
    const u32 head = blockIdx.y, share = heads / kv_heads;
    const Tile tile = tiles[blockIdx.x];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    limits_of(w.limits, tile, positions, share, window);
    __syncthreads();
    int low, high;
    range_of(w.limits, tile, low, high);
    wait_for_others();
    queries_of(w, tile, q, heads, share, head);
    float o[COLUMNS][4], held[COLUMNS][4];
    for (u32 nth = 0; nth < tile.blocks; nth++) {
        const int block = tile.first_block + nth;
        pages_of(w, block, low, high, tables + tile.table);
        weights_of<TILE_CHUNKS>(w, block, low, high, keys, flags, kv_heads, head, scale);
        values_of<TILE_GROUPS>(w, block, low, high, values, kv_heads, head, o);
        if (threadIdx.x < M && sees(w.limits, threadIdx.x, block)) {
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
        for (int half = 0; half < 2; half++) {
            const int m = g + 8 * half;
            if (!sees(w.limits, m, block)) continue;
            const bool begins = w.limits.low[m] / BLOCK == block;
            const float keep = w.keep[m], take = w.take[m];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) held[j][e] = begins ? o[j][e] : folded(held[j][e], keep, o[j][e], take);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 m = g + 8 * half;
        if (m >= tile.count) continue;
        const float sum = w.running_sum[m];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int d = 8 * (warp + WARPS * j) + 2 * t;
            if (d < D) *(float2 *)(out + place_of(tile, m, heads, share, head) + d) = make_float2(held[j][2 * half] / sum, held[j][2 * half + 1] / sum);
        }
    }
}

// Folds the partial results of a query: block x is a tile, y a K/V head, z one of its queries. With `prepared`, what comes out is also stored as
// the tensor cores read it, for blocks of 8 NT rows: a head is then a whole number of groups of 128.
constexpr int FOLDERS = 128;

EXPORT __launch_bounds__(FOLDERS) attend_fold(const u32 *positions, const Tile *tiles, const float *partials, float *out, u32 heads, u32 kv_heads, u32 window,
                                              uint4 *prepared, float *sums, u32 nt) {
    after_others();
    __shared__ Limits limits;
    __shared__ __align__(16) float values[D];
    const u32 head = blockIdx.y, share = heads / kv_heads, m = blockIdx.z;
    const Tile tile = tiles[blockIdx.x];
    if (m >= tile.count) return;
    limits_of(limits, tile, positions, share, window);
    __syncthreads();
    const u32 row = tile.first_row + (tile.from + m) / share, h = head * share + (tile.from + m) % share;
    const int from = limits.low[m] / BLOCK - (int)tile.first_block, to = limits.high[m] / BLOCK - (int)tile.first_block;
    const u64 step = (u64)kv_heads * M * (D + 2);
    const float *own = partials + (((u64)tile.partials * kv_heads + head) * M + m) * (D + 2);
    for (int d = 2 * threadIdx.x; d < D; d += 2 * FOLDERS) {
        float most = 0.f, sum = 0.f;
        float2 value = make_float2(0.f, 0.f);
        for (int first = from; first <= to; first += TOGETHER) {
            float2 part[TOGETHER], whole[TOGETHER];  // values; maximum and sum of a block: asked for at once
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (first + j <= to) part[j] = *(const float2 *)(own + (first + j) * step + d), whole[j] = *(const float2 *)(own + (first + j) * step + D);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                if (first + j > to) continue;
                if (first + j == from) {
                    most = whole[j].x, sum = whole[j].y, value = part[j];
                } else {
                    const Fold f = fold(most, sum, whole[j].x, whole[j].y);
                    most = f.max, sum = f.sum;
                    value = make_float2(folded(value.x, f.keep, part[j].x, f.take), folded(value.y, f.keep, part[j].y, f.take));
                }
            }
        }
        value = make_float2(value.x / sum, value.y / sum);
        *(float2 *)&values[d] = value;
        *(float2 *)&out[((u64)row * heads + h) * D + d] = value;
    }
    if (D % 128 != 0 || !prepared) return;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const bool active = threadIdx.x < D / 16;
    const u32 group = active ? threadIdx.x / 4 : 0, lane = threadIdx.x % 4;
    float v[4][4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const float4 four = *(const float4 *)&values[group * 64 + s * 16 + lane * 4];
        v[s][0] = four.x, v[s][1] = four.y, v[s][2] = four.z, v[s][3] = four.w;
    }
    store_prepared(v, prepared, sums, row, h * (D / 64) + group, (heads * D + 255) / 256, nt, lane, active);
}

// Puts K and V [rows, kv_heads * D] into the pages: block x is a row, y a head.
EXPORT append(const float *k, const float *v, const u32 *slots, u16 *keys, u16 *values, float *flags) {
    after_others();
    __shared__ float head[2][D];
    const u32 row = blockIdx.x, heads = gridDim.y;
    const u64 at = ((u64)row * heads + blockIdx.y) * D;
    for (u32 i = threadIdx.x; i < D; i += blockDim.x) head[0][i] = k[at + i], head[1][i] = v[at + i];
    __syncthreads();
    append_key(head[0], keys, slots[row], heads, blockIdx.y, D);
    append_value(head[1], values, flags, slots[row], heads, blockIdx.y, D);
}
