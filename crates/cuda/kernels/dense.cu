// Matrices of f32 or f16, row by row, in f32: small ones (routers, gates) and checkpoints that are not quantised to bf16.
// HALF: the values are f16.
//
// One warp an output: lane l takes inputs l, l + 32, ... in order, lanes are added by halves. Rows go eight at a time, each on its own.

#if HALF
typedef u16 Stored;
__device__ __forceinline__ float value(Stored v) { return f16_value(v); }
#else
typedef float Stored;
__device__ __forceinline__ float value(Stored v) { return v; }
#endif

constexpr int ROWS = 8, WARPS = 8;

// Output `output` of rows `first` and on. `w` is the output's own row of the matrix.
__device__ __forceinline__ void dots(const Stored *w, const float *x, float *y, u32 inputs, u32 outputs, u32 output, int count) {
    const int lane = threadIdx.x % 32;
    float sums[ROWS] = {};
    for (u32 k = lane; k < inputs; k += 32) {
        const float v = value(w[k]);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < count) sums[r] = fmaf(v, x[(u64)r * inputs + k], sums[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= count) break;
        const float sum = warp_sum(sums[r]);
        if (lane == 0) y[(u64)r * outputs + output] = sum;
    }
}

EXPORT linear(const Stored *w, const float *x, float *y, u32 outputs, u32 inputs, u32 rows) {
    wait_for_others();
    const u32 output = blockIdx.x * WARPS + threadIdx.x / 32, first = blockIdx.y * ROWS;
    if (output >= outputs) return;
    dots(w + (u64)output * inputs, x + (u64)first * inputs, y + (u64)first * outputs, inputs, outputs, output, min(ROWS, rows - first));
}

// One pair (row, rank) a block in y: the matrix of the pair's expert times row `pair / share` of x.
EXPORT linear_pairs(const Stored *w, const u32 *experts, const float *x, float *y, u32 outputs, u32 inputs, u32 share) {
    wait_for_others();
    const u32 output = blockIdx.x * WARPS + threadIdx.x / 32, pair = blockIdx.y;
    if (output >= outputs) return;
    const Stored *own = w + ((u64)experts[pair] * outputs + output) * inputs;
    dots(own, x + (u64)(pair / share) * inputs, y + (u64)pair * outputs, inputs, outputs, output, 1);
}

// Block x is a row, y a stretch of its inputs.
EXPORT embed(const Stored *table, const u32 *ids, float *out, float scale, u32 inputs, u32 outputs, const float *numbers) {
    after_others();
    const u32 id = embedded_row(ids, numbers, outputs);
    const Stored *row = table + (u64)id * inputs;
    const u32 k = blockIdx.y * blockDim.x + threadIdx.x;
    if (k < inputs)
        out[(u64)blockIdx.x * inputs + k] = id == 0xffffffffu ? __uint_as_float(0x7fc00000u) : value(row[k]) * scale;
}

EXPORT row_dots(const Stored *table, const u32 *ids, const float *y, float *out, u32 inputs, u32 outputs, u32 count) {
    after_others();
    const u32 i = blockIdx.x * WARPS + threadIdx.x / 32;
    if (i < count) dots(table + (u64)ids[i] * inputs, y, out, inputs, 0, i, 1);
}

// Matrices of a stack lie `stride` rows apart in the file; here they follow each other.
EXPORT repack(const u8 *data, u8 *out, u64 row_bytes, u32 outputs, u32 stride, u64 n) {
    wait_for_others();
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const u64 row = i / row_bytes, expert = row / outputs;
    out[i] = data[(expert * stride + row % outputs) * row_bytes + i % row_bytes];
}
