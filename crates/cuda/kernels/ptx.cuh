// Instructions that C++ has no words for, each as a function: the only place with assembly, but for Hopper's
// own in hopper.cuh.
//
// NVRTC compiles without headers, so nothing is included. tools/cuda_emulator, which runs kernels on a processor for tests, compiles them with
// its own of these functions.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef MLXCEL_EMULATED
#include "kernel.h"
#else

// Memory of a block whose size is said at its launch.
#define SHARED_AT_LAUNCH(type, name) extern __shared__ __align__(128) type name[]

// Launches of a sequence overlap: the blocks of one take their places while those of the one before still run, which says here that they may.
__device__ __forceinline__ void others_may_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Every kernel waits here before it touches what another wrote. All of the launches before have ended then, as each of them waited for its own.
__device__ __forceinline__ void wait_for_others() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Both, for short kernels. Those that read weights or whole prompts let others begin when they end: whoever began earlier would take memory and
// places from them (docs/SPEED.md).
__device__ __forceinline__ void after_others() {
    others_may_begin();
    wait_for_others();
}

#ifdef TIMELINE
// When each block of threads came to wait for others, went on, and ended, by the device's clock in nanoseconds: for tools/gpu_timeline. The last
// records stay.
struct Stay { u64 came, went_on, ended; u32 line, block, blocks, processor; };
constexpr u32 STAYS = 1 << 18;
extern "C" { __device__ Stay timeline_stays[STAYS]; __device__ u32 timeline_count; }

__device__ __forceinline__ u64 clock_now() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t) :: "memory"); return t; }

struct Staying {
    u64 came, went_on;
    u32 line;
    __device__ __forceinline__ Staying(u32 line) : came(clock_now()), line(line) { wait_for_others(); went_on = clock_now(); }
    __device__ __forceinline__ ~Staying() {
        if (threadIdx.x != 0) return;
        u32 processor;
        asm volatile("mov.u32 %0, %smid;" : "=r"(processor));
        timeline_stays[atomicAdd(&timeline_count, 1u) % STAYS] = {came, went_on, clock_now(), line, blockIdx.x + (blockIdx.y << 20), gridDim.x, processor};
    }
};
#define wait_for_others() Staying staying(__LINE__)
#define after_others() others_may_begin(); wait_for_others()
#endif

// Two floats as bf16, rounded to nearest even: `low` in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ float f16_value(u16 bits) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
}

// d += a b: 16 x 16 times 16 x 8 values of bf16, by a warp.
__device__ __forceinline__ void mma(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// a b + c on two bf16 at once; exact wherever it is used.
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// a & b | c, in one instruction where the compiler would take two.
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// Weights are read once: they leave no trace in the first-level cache, which x needs.
__device__ __forceinline__ uint4 stream(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// A value that another block of threads wrote meanwhile: past the first-level cache.
__device__ __forceinline__ float fresh(const float *p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

__device__ __forceinline__ float2 fresh(const float2 *p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
    return v;
}

// Asks for 128 bytes that will be needed.
__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

#endif
