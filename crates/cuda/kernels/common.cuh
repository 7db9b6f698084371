// What every kernel file begins with. NVRTC compiles without headers, so nothing is included.
//
// Contraction is off (--fmad=false): a fused multiply-add is written fmaf, so that the order of roundings is what is read here.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT extern "C" __global__ void

__device__ __forceinline__ float bf16_value(u32 bits) { return __uint_as_float(bits << 16); }

// Two floats as bf16, rounded to nearest even: `low` in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// The same value rounded to bf16. NaN stays NaN.
__device__ __forceinline__ u16 to_bf16(float v) { return (u16)pack_bf16(v, 0.f); }

__device__ __forceinline__ float f16_value(u16 bits) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
}

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
