// What every kernel file begins with, after ptx.cuh.
//
// Contraction is off (--fmad=false): a fused multiply-add is written fmaf, so that the order of roundings is what is read here.

#define EXPORT extern "C" __global__ void

__device__ __forceinline__ float bf16_value(u32 bits) { return __uint_as_float(bits << 16); }

// The same value rounded to bf16. NaN stays NaN.
__device__ __forceinline__ u16 to_bf16(float v) { return (u16)pack_bf16(v, 0.f); }

// The row of a table that block x embeds: its id, or what `argmax` left as a number. All ones where that is no row.
__device__ __forceinline__ u32 embedded_row(const u32 *ids, const float *numbers, u32 rows) {
    const u32 id = numbers ? (numbers[blockIdx.x] >= 0.f && numbers[blockIdx.x] < (float)rows ? (u32)numbers[blockIdx.x] : 0xffffffffu) : ids[blockIdx.x];
    return id < rows ? id : 0xffffffffu;
}

// A value that is the same in every lane, of which the compiler is told this way: what follows from it is computed once a warp.
__device__ __forceinline__ u32 uniform(u32 v) { return __shfl_sync(~0u, v, 0); }

// Sum over a warp by halves: 16, 8, 4, 2, 1. Every lane gets it.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

__device__ __forceinline__ float sigmoid(float x) { return fmaf(x, 0.f, 1.f / (expf(-x) + 1.f)); }

// 0: GELU in its tanh form, 1: SiLU, 2: sigmoid.
__device__ __forceinline__ float activate(int kind, float x) {
    if (kind == 0) {
        const float inner = fmaf(x * x, 0.044715f, 1.f) * x;
        return x / (expf(inner * -1.595769f) + 1.f);
    }
    return kind == 1 ? x / (expf(-x) + 1.f) : sigmoid(x);
}

// 64 inputs of one row, rounded to bf16 by four lanes: v[s][p] is input 16 s + 4 t + p of lane t, words[2 s + p / 2] its place. All four get the
// sums of both halves.
__device__ __forceinline__ void round_group(const float v[4][4], u32 words[8], float half[2]) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
        words[2 * s] = pack_bf16(v[s][0], v[s][1]);
        words[2 * s + 1] = pack_bf16(v[s][2], v[s][3]);
        const float low = bf16_value(words[2 * s] & 0xffff) + bf16_value(words[2 * s] >> 16);
        const float high = bf16_value(words[2 * s + 1] & 0xffff) + bf16_value(words[2 * s + 1] >> 16);
        half[s / 2] = s % 2 ? half[s / 2] + (low + high) : low + high;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        half[h] += __shfl_xor_sync(~0u, half[h], 1);
        half[h] += __shfl_xor_sync(~0u, half[h], 2);
    }
}

// Rows as the tensor cores read them (linear.cu): rounded to bf16, in blocks of 8 NT rows, with the sums of their groups. x is
// [block][64 inputs][NT][2][32] of 16 bytes, sums [block] of three arrays for groups of 32, 64 and 128, each [group][8 NT].
//
// Lane t of four stores its part of 64 inputs of one row. All lanes of a warp come here, in fours; the fours of neighbouring groups are
// neighbours, so that the sums of 128 meet.
__device__ __forceinline__ void store_prepared(const float v[4][4], uint4 *x, float *sums, u32 row, u32 group, u32 supers, u32 nt, u32 t, bool active) {
    const u32 block = row / 8 / nt, n = row / 8 % nt, column = row % (8 * nt), width = 8 * nt;
    u32 words[8];
    float half[2];
    round_group(v, words, half);
    const float whole = half[0] + half[1], both = whole + __shfl_xor_sync(~0u, whole, 4);
    if (!active) return;
    uint4 *to = x + (((u64)block * supers * 4 + group) * nt + n) * 64 + row % 8 * 4 + t;
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[32] = make_uint4(words[4], words[5], words[6], words[7]);
    float *own = sums + (u64)block * supers * 14 * width + column;
    if (t == 0) own[2 * group * width] = half[0];
    if (t == 1) own[(2 * group + 1) * width] = half[1];
    if (t == 2) own[(supers * 8 + group) * width] = whole;
    if (t == 3 && group % 2 == 0) own[(supers * 12 + group / 2) * width] = both;
}

// Puts one head's keys or values of one row into pages (attend.cu says how they lie): `values` in shared memory, `slot` is page * 64 + place.
// By the whole block, which has synchronised.
__device__ __forceinline__ void append_key(const float *values, u16 *keys, u32 slot, u32 heads, u32 head, u32 dim) {
    const u32 key = slot % 64;
    u16 *to = keys + ((u64)(slot / 64) * heads + head) * 64 * dim + key / 8 * 8 * dim;
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        const u32 chunk = i / 32;
        to[chunk * 256 + key % 8 * min(32u, dim - chunk * 32) + i % 32] = to_bf16(values[i]);
    }
}

__device__ __forceinline__ void append_value(const float *values, u16 *pages, float *flags, u32 slot, u32 heads, u32 head, u32 dim) {
    const u64 page = (u64)(slot / 64) * heads + head;
    const u32 k = slot % 32, place = k % 8 / 2 * 8 + k / 16 * 4 + k % 16 / 8 * 2 + k % 2;
    int damaged = 0;
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) damaged |= (to_bf16(values[i]) & 0x7f80) == 0x7f80;
    damaged = __syncthreads_or(damaged);
    u16 *to = pages + (page * 2 + slot % 64 / 32) * dim * 32 + place;
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) to[i * 32] = damaged ? (u16)0 : to_bf16(values[i]);
    if (threadIdx.x == 0) flags[page * 64 + slot % 64] = damaged ? __uint_as_float(0x7fc00000u) : 0.f;
}
