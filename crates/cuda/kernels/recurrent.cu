// The recurrent layers: a causal convolution with its window, and the gated delta rule with its matrices, row after row.
//
// KEY_DIM: values of a q or k head, up to 1024. LANES of a warp that share a column of a matrix, so that a lane holds at most 32 of its
// values in registers while the rows of a span pass over it. TAPS of the convolution, CHUNK rows that a thread of it takes.
//
// A slot has two places for its state. A place holds all layers, one after the other: the window [TAPS - 1][channels], then each head's
// matrix in tiles of COLUMNS columns, [tile][PER][lane][4]: lane l has column l / LANES of the tile, and of its values those whose index
// divided by 4 is l % LANES modulo LANES. Loads and stores are then whole lines. Values that fill up the last tile or the last four of a
// column begin as zeros and meet no others.
//
// Orders, by the shape alone. Convolution: taps fused in order, the oldest first. Squares of a head: lane l of a warp takes values l,
// l + 32, ... in order, lanes are added by halves. Sums over the key dimension: four fused chains a lane, value i in chain i % 4;
// (0 + 2) + (1 + 3); then lanes 1 apart, 2 apart and so on. The decayed state is rounded before it is used.
//
// A step reads and writes every matrix once (3.1 MB each for 48 heads of 128 x 128), all loads of a thread under way at once.

constexpr int HISTORY = TAPS - 1;
constexpr u32 NONE = ~0u;
static_assert(CHUNK >= HISTORY, "only the first chunk of a span may need the window");

// What a span does to its slot: rows `0..lead` lead from place `read` (NONE: zeros) to `middle`, the `rest`, which go on record, from there
// to `write`, which may be `read` again. Without lead rows the rest starts from `read`.
struct alignas(16) Pass {
    u32 slot, first, lead, rest, read, middle, write, unused;
};

// Rows `offset..offset + CHUNK` of a pass; pass NONE: nothing.
struct alignas(8) Item {
    u32 pass, offset;
};

// One thread a channel of a chunk of rows: block x is a stretch of channels, y an item, z a layer. Layers lie `x_layer` and `layer` values
// apart, places `place`. Without `out` only the windows move on, without `record` [slots][record_rows][channels] nothing goes on record.
EXPORT causal_conv(const float *x, u64 x_layer, const float *weight, float *out, float *windows, u64 place, u64 layer, float *record, u32 record_rows, const Pass *passes, const Item *items, u32 channels) {
    after_others();
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    const Item item = items[blockIdx.y];
    if (item.pass == NONE || c >= channels) return;
    const Pass pass = passes[item.pass];
    const u32 end = pass.lead + pass.rest;
    x += blockIdx.z * x_layer + (u64)pass.first * channels + c;
    windows += blockIdx.z * layer + 2 * (u64)pass.slot * place + c;
    const float *old = pass.read == NONE ? nullptr : windows + pass.read * place;

    // The rows before the chunk, then the chunk. Those before the span are the window: only chunk 0 looks so far back.
    float rows[HISTORY + CHUNK];
#pragma unroll
    for (u32 i = 0; i < HISTORY + CHUNK; i++) {
        const u32 at = item.offset + i;
        rows[i] = 0.f;
        if (at < HISTORY) {
            if (old) rows[i] = old[(u64)at * channels];
        } else if (at - HISTORY < end) {
            rows[i] = x[(u64)(at - HISTORY) * channels];
        }
    }

    if (out) {
        out += (u64)pass.first * channels + c;
        float taps[TAPS];
#pragma unroll
        for (int j = 0; j < TAPS; j++) taps[j] = weight[(u64)j * channels + c];
#pragma unroll
        for (int r = 0; r < CHUNK; r++) {
            if (item.offset + r >= end) break;
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < TAPS; j++) sum = fmaf(taps[j], rows[r + j], sum);
            out[(u64)(item.offset + r) * channels] = activate(1, sum);
        }
    }

    if (record) {
        record += (u64)pass.slot * record_rows * channels + c;
#pragma unroll
        for (int r = 0; r < CHUNK; r++) {
            const u32 t = item.offset + r;
            if (t >= pass.lead && t < end) record[(u64)(t - pass.lead) * channels] = rows[HISTORY + r];
        }
    }

    // The thread that read the old window writes the new ones: it may be the same place.
    if (item.offset) return;
    auto slide = [&](u32 seen, u32 to) {
        float *window = windows + to * place;
#pragma unroll
        for (u32 j = 0; j < HISTORY; j++) {
            const u32 at = seen + j;
            float v = 0.f;
            if (at >= HISTORY) {
                v = x[(u64)(at - HISTORY) * channels];
            } else {
#pragma unroll
                for (u32 i = 0; i < HISTORY; i++)
                    if (i == at) v = rows[i];
            }
            window[(u64)j * channels] = v;
        }
    };
    if (pass.lead) slide(pass.lead, pass.middle);
    slide(end, pass.write);
}

constexpr int COLUMNS = 32 / LANES;                               // of a tile: what a warp works on
constexpr int PER = (KEY_DIM + 4 * LANES - 1) / (4 * LANES);      // fours of a column a lane holds
constexpr int KEYS = PER * 4 * LANES;                             // of a head in shared memory, filled up with zeros
constexpr int RAW = (KEYS + 31) / 32;                             // values of a head a lane brings
constexpr int WARPS = 2, THREADS = 32 * WARPS, WIDTH = WARPS * COLUMNS;
constexpr int ROWS = 32 / LANES;                                  // brought at a time
constexpr int VALUES = (ROWS * WIDTH + THREADS - 1) / THREADS;    // values of v a thread brings

// ln(1 + e^x).
__device__ __forceinline__ float softplus(float x) { return (x > 0.f ? x : 0.f) + log1pf(expf(-fabsf(x))); }

// e^(-rate softplus(a + bias)); NaN where any of them is not finite, which the exponential alone would hide.
__device__ __forceinline__ float decay_of(float a, float rate, float bias) {
    const float x = a + bias;
    return fmaf(rate, 0.f, fmaf(x, 0.f, expf(-rate * softplus(x))));
}

// Factor that gives a head the length 1; NaN when the squares overflowed.
__device__ __forceinline__ float inverse_length(float squares) { return 1.f / sqrtf(squares + 1e-6f) + squares * 0.f; }

// Sums of ROWS values over a warp, each as `warp_sum` adds it up: lane l gets the one of row l / (32 / ROWS). A lane keeps half of its rows
// at each step while it has more than one, so that few values travel.
__device__ __forceinline__ float row_sums(float sums[ROWS], u32 lane) {
    int n = ROWS;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        if (n > 1) {
            n /= 2;
            const bool upper = lane & step;
#pragma unroll
            for (int r = 0; r < ROWS / 2; r++) {
                if (r >= n) continue;
                const float keep = upper ? sums[r + n] : sums[r], give = upper ? sums[r] : sums[r + n];
                sums[r] = keep + __shfl_xor_sync(~0u, give, step);
            }
        } else {
            sums[0] += __shfl_xor_sync(~0u, sums[0], step);
        }
    }
    return sums[0];
}

// Sum over the lanes of a column; each of them gets it.
__device__ __forceinline__ float column_sum(float4 chains) {
    float sum = (chains.x + chains.z) + (chains.y + chains.w);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

// Block x is WIDTH columns of a value head, y a pass, z a layer. Rows of `qkv` are `stride` values wide: q at 0 (not read without `out`), k
// at `k_at`, v after all k heads. With `rate`, a and b are gates before their functions; without it they are decay and beta. Rows on record,
// [slots][record_rows], are k before its norm, v, decay and beta, of all heads. Layers lie `qkv_layer` and `layer` values apart.
EXPORT __launch_bounds__(THREADS) gated_delta(const float *qkv, u64 qkv_layer, u32 stride, u32 k_at, const float *a, const float *b, u32 gate_stride, const float *rate, const float *dt_bias, float *matrices, u64 place, u64 layer, float *record, u32 record_rows, const Pass *passes, float *out, u32 value_dim, u32 key_heads, u32 value_heads) {
    after_others();
    __shared__ float4 keys[2][ROWS][KEYS / 4], queries[2][ROWS][KEYS / 4];
    __shared__ float values[2][ROWS][WIDTH], gates[2][ROWS][2];
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u32 blocks = gridDim.x / value_heads, head = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const u32 share = value_heads / key_heads, key_head = head / share;
    const u32 key_width = key_heads * KEY_DIM, value_width = value_heads * value_dim;
    const u32 tiles = (value_dim + COLUMNS - 1) / COLUMNS, tile = block * WARPS + warp;
    const bool active = tile < tiles;
    const Pass pass = passes[blockIdx.y];
    const u32 end = pass.lead + pass.rest;

    // The state of this lane's part of a column.
    float4 *own = (float4 *)(matrices + blockIdx.z * layer + 2 * (u64)pass.slot * place) + ((u64)head * tiles + tile) * PER * 32 + lane;
    float4 s[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) s[j] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (active && pass.read != NONE) {
        const float4 *from = own + pass.read * (place / 4);
#pragma unroll
        for (int j = 0; j < PER; j++) s[j] = from[j * 32];
    }
    auto store = [&](u32 to) {
        float4 *at = own + to * (place / 4);
        if (active)
#pragma unroll
            for (int j = 0; j < PER; j++) at[j * 32] = s[j];
    };

    // Rows come ROWS at a time, first to registers (`bring`), then to shared memory (`stage`), while those before them are worked on.
    // Warp 0 brings k and warp 1 q; a thread also some values of v and one gate.
    const u64 rows_at = blockIdx.z * qkv_layer + (u64)pass.first * stride;
    const float *vector = qkv + rows_at + (warp ? 0 : k_at) + key_head * KEY_DIM;
    const float *v_row = qkv + rows_at + k_at + key_width + head * value_dim;
    const bool wanted = warp == 0 || out;
    const u32 gate_row = thread / 2, gate_kind = thread % 2;
    const float *gate_at = (gate_kind ? b : a) + blockIdx.z * qkv_layer + (u64)pass.first * gate_stride + head;
    const float head_rate = rate ? rate[head] : 0.f, head_bias = rate ? dt_bias[head] : 0.f;
    const float scale = warp ? 1.f / sqrtf((float)KEY_DIM) : 1.f;
    float raw[ROWS][RAW], v[VALUES], gate = 0.f;
    auto bring = [&](u32 first) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int m = 0; m < RAW; m++) {
                const u32 i = lane + 32 * m;
                raw[r][m] = wanted && i < KEY_DIM && first + r < end ? vector[(u64)(first + r) * stride + i] : 0.f;
            }
#pragma unroll
        for (int n = 0; n < VALUES; n++) {
            const u32 e = thread + THREADS * n, r = e / WIDTH, column = block * WIDTH + e % WIDTH;
            v[n] = r < ROWS && first + r < end && column < value_dim ? v_row[(u64)(first + r) * stride + column] : 0.f;
        }
        if (gate_row < ROWS && first + gate_row < end) gate = gate_at[(u64)(first + gate_row) * gate_stride];
    };

    const u32 record_width = key_width + value_width + 2 * value_heads;
    if (record) record += (u64)pass.slot * record_rows * record_width;
    const bool records_k = record && warp == 0 && block == 0 && head % share == 0;
    auto stage = [&](int buffer, u32 first) {
        float squares[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            squares[r] = 0.f;
#pragma unroll
            for (int m = 0; m < RAW; m++) squares[r] = fmaf(raw[r][m], raw[r][m], squares[r]);
        }
        const float factor = inverse_length(row_sums(squares, lane));
        float4(*to)[KEYS / 4] = warp ? queries[buffer] : keys[buffer];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float f = __shfl_sync(~0u, factor, r * (32 / ROWS));
            const u32 t = first + r;
            const bool recorded = records_k && t >= pass.lead && t < end;
#pragma unroll
            for (int m = 0; m < RAW; m++) {
                const u32 i = lane + 32 * m;
                // What fills a head up stays zero, also where the factor is NaN.
                if (i < KEYS) ((float *)to[r])[i] = i < KEY_DIM ? raw[r][m] * f * scale : 0.f;
                if (recorded && i < KEY_DIM) record[(u64)(t - pass.lead) * record_width + key_head * KEY_DIM + i] = raw[r][m];
            }
        }
#pragma unroll
        for (int n = 0; n < VALUES; n++) {
            const u32 e = thread + THREADS * n, r = e / WIDTH, column = block * WIDTH + e % WIDTH, t = first + r;
            if (r >= ROWS) continue;
            values[buffer][r][e % WIDTH] = v[n];
            if (record && t >= pass.lead && t < end && column < value_dim)
                record[(u64)(t - pass.lead) * record_width + key_width + head * value_dim + column] = v[n];
        }
        const u32 t = first + gate_row;
        if (gate_row >= ROWS || t >= end) return;
        const float g = !rate ? gate : gate_kind ? sigmoid(gate) : decay_of(gate, head_rate, head_bias);
        gates[buffer][gate_row][gate_kind] = g;
        if (record && block == 0 && t >= pass.lead)
            record[(u64)(t - pass.lead) * record_width + key_width + value_width + gate_kind * value_heads + head] = g;
    };

    const u32 part = lane % LANES, column = tile * COLUMNS + lane / LANES;
    const bool answers = out && part == 0 && column < value_dim;
    if (out) out += (u64)pass.first * value_width + head * value_dim + column;
    bring(0);
    stage(0, 0);
    int buffer = 0;
    for (u32 first = 0; first < end; first += ROWS, buffer ^= 1) {
        // Everyone has staged these rows, and is done with the ones whose place the next take.
        __syncthreads();
        const bool more = first + ROWS < end;
        if (more) bring(first + ROWS);
        const u32 n = more ? ROWS : end - first;
        for (u32 r = 0; r < n; r++) {
            const float4 *k = keys[buffer][r] + part, *q = queries[buffer][r] + part;
            const float decay = gates[buffer][r][0], beta = gates[buffer][r][1];
            float4 sums = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int j = 0; j < PER; j++) {
                const float4 kj = k[j * LANES];
                s[j].x *= decay, s[j].y *= decay, s[j].z *= decay, s[j].w *= decay;
                sums.x = fmaf(kj.x, s[j].x, sums.x);
                sums.y = fmaf(kj.y, s[j].y, sums.y);
                sums.z = fmaf(kj.z, s[j].z, sums.z);
                sums.w = fmaf(kj.w, s[j].w, sums.w);
            }
            const float change = beta * (values[buffer][r][warp * COLUMNS + lane / LANES] - column_sum(sums));
            sums = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int j = 0; j < PER; j++) {
                const float4 kj = k[j * LANES], qj = q[j * LANES];
                s[j].x = fmaf(kj.x, change, s[j].x);
                s[j].y = fmaf(kj.y, change, s[j].y);
                s[j].z = fmaf(kj.z, change, s[j].z);
                s[j].w = fmaf(kj.w, change, s[j].w);
                sums.x = fmaf(qj.x, s[j].x, sums.x);
                sums.y = fmaf(qj.y, s[j].y, sums.y);
                sums.z = fmaf(qj.z, s[j].z, sums.z);
                sums.w = fmaf(qj.w, s[j].w, sums.w);
            }
            const float read = column_sum(sums);
            const u32 t = first + r;
            if (answers) out[(u64)t * value_width] = read;
            if (t + 1 == pass.lead) store(pass.middle);
        }
        if (more) stage(buffer ^ 1, first + ROWS);
    }
    store(pass.write);
}

// Copies `n` fours of a state.
EXPORT copy_state(const float4 *from, float4 *to, u64 n) {
    after_others();
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < n) to[i] = from[i];
}
