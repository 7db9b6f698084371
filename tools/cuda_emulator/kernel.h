// What kernels are compiled with in place of the compiler's own words and of ptx.cuh. A thread of a block is a fiber of one thread of the
// processor, which has a block to itself: so what a block shares is thread-local, and what a lane waits for is a call of the scheduler.

#pragma once

#include <math.h>
#include <string.h>
#include <utility>

#include "shared.h"

namespace emulator {
static const Services *services;

static inline void meet(void (*finish)(Warp *, uint32_t) = nullptr) { services->meet(now(), finish); }
static inline int meet_block(int value) { return services->meet_block(now(), value); }

template <class... A, size_t... I> static void apply(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*(A *)arguments[I]...);
}
template <class... A> constexpr unsigned count(void (*)(A...)) { return sizeof...(A); }
template <class... A> static void enter(void (*kernel)(A...), void **arguments) {
    apply(kernel, arguments, std::index_sequence_for<A...>());
}
}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void emulator_attach(const emulator::Services *s) { emulator::services = s; }
// `emulator_kernel` is looked for in the text, and taken out of it, by compiler.cpp.
#define __global__ emulator_kernel
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (emulator::now()->thread)
#define blockIdx (emulator::now()->block)
#define blockDim (emulator::now()->threads)
#define gridDim (emulator::now()->blocks)
#define SHARED_AT_LAUNCH(type, name) type *const name = (type *)emulator::now()->memory

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { u32 x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

static inline float __uint_as_float(u32 v) { float f; memcpy(&f, &v, 4); return f; }
static inline u32 __float_as_uint(float v) { u32 u; memcpy(&u, &v, 4); return u; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
static inline u32 min(int a, u32 b) { return min((u32)a, b); }
static inline u32 min(u32 a, int b) { return min(a, (u32)b); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
template <class T> static inline T __ldg(const T *p) { return *p; }

static inline void __syncthreads() { emulator::meet_block(0); }
static inline int __syncthreads_or(int value) { return emulator::meet_block(value); }
static inline void __syncwarp() { emulator::meet(); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline u32 atomicAdd(u32 *p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }

template <class T> static inline T __shfl_sync(u32, T v, int from) {
    static_assert(sizeof(T) <= 8, "two words at most");
    emulator::Warp *warp = emulator::now()->warp;
    const u32 set = warp->generation % 2;
    memcpy(warp->words[set][emulator::now()->lane], &v, sizeof v);
    emulator::meet();
    memcpy(&v, warp->words[set][from & 31], sizeof v);
    return v;
}
template <class T> static inline T __shfl_xor_sync(u32 mask, T v, int step) { return __shfl_sync(mask, v, (int)(emulator::now()->lane ^ step)); }

static inline void others_may_begin() {}
static inline void wait_for_others() {}
static inline void after_others() {}
static inline void prefetch(const void *) {}
static inline float fresh(const float *p) { return *(const volatile float *)p; }
static inline float2 fresh(const float2 *p) { return {fresh(&p->x), fresh(&p->y)}; }
static inline uint4 stream(const void *p) { return *(const uint4 *)p; }
static inline u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }

namespace emulator {
static inline float widen(u32 bits) { return __uint_as_float(bits << 16); }
// To nearest even; every NaN becomes the one that the hardware gives.
static inline u32 narrow(float v) {
    if (v != v) return 0x7fff;
    const u32 bits = __float_as_uint(v);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// d += a b for a whole warp, k by k. Words of a lane: a0..a3, b0, b1, d0..d3. Row, k and column of each are those of mma.m16n8k16.
static void multiply(Warp *warp, u32 generation) {
    u32(*words)[WORDS] = warp->words[generation % 2];
    float a[16][16], b[16][8], d[16][8];
    for (u32 lane = 0; lane < 32; lane++) {
        const u32 g = lane / 4, t = lane % 4, *w = words[lane];
        for (u32 j = 0; j < 4; j++)
            for (u32 p = 0; p < 2; p++) a[g + 8 * (j % 2)][2 * t + 8 * (j / 2) + p] = widen(w[j] >> 16 * p & 0xffff);
        for (u32 j = 0; j < 2; j++)
            for (u32 p = 0; p < 2; p++) b[2 * t + 8 * j + p][g] = widen(w[4 + j] >> 16 * p & 0xffff);
        for (u32 e = 0; e < 4; e++) d[g + e / 2 * 8][2 * t + e % 2] = __uint_as_float(w[6 + e]);
    }
    // Rows inside: sixteen sums that do not wait for each other.
    for (u32 k = 0; k < 16; k++)
        for (u32 row = 0; row < 16; row++)
            for (u32 column = 0; column < 8; column++) d[row][column] = fmaf(a[row][k], b[k][column], d[row][column]);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 e = 0; e < 4; e++) words[lane][6 + e] = __float_as_uint(d[lane / 4 + e / 2 * 8][2 * (lane % 4) + e % 2]);
}
}  // namespace emulator

static inline u32 pack_bf16(float low, float high) { return emulator::narrow(low) | emulator::narrow(high) << 16; }
static inline float f16_value(u16 bits) { _Float16 v; memcpy(&v, &bits, 2); return (float)v; }
static inline u32 fma2(u32 a, u32 b, u32 c) {
    using emulator::widen;
    return pack_bf16(fmaf(widen(a & 0xffff), widen(b & 0xffff), widen(c & 0xffff)), fmaf(widen(a >> 16), widen(b >> 16), widen(c >> 16)));
}

static inline void mma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    emulator::Warp *warp = emulator::now()->warp;
    u32 *own = warp->words[warp->generation % 2][emulator::now()->lane];
    own[0] = a0, own[1] = a1, own[2] = a2, own[3] = a3, own[4] = b0, own[5] = b1;
    memcpy(own + 6, d, 16);
    emulator::meet(emulator::multiply);
    memcpy(d, own + 6, 16);
}
