// Instructions of Hopper that the wide kernel is made of, each as a function (ptx.cuh has the others).

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#ifdef MLXCEL_EMULATED
#include "hopper.h"
#else
namespace hopper {

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory"); }
// Barriers that were made are seen by copies from here on.
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory"); }
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void copy(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// Turns of the two warpgroups that multiply.
__device__ __forceinline__ void take_turn(u32 own) { asm volatile("bar.sync %0, 256;" ::"r"(1 + own) : "memory"); }
__device__ __forceinline__ void give_turn(u32 other) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + other) : "memory"); }
__device__ __forceinline__ void few_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
__device__ __forceinline__ void many_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }

// The compiler must neither move uses of these registers across this, nor reuse the registers before.
__device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void pin(u32 (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void finish() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// d = a x, added to what is there if `add`: 64 outputs of a warpgroup times 128 rows that `x` describes, 16 inputs.
// d[4 n + e]: output lane / 4 + 8 (e / 2) of the warp's tile, row 8 n + 2 (lane % 4) + e % 2.
__device__ __forceinline__ void multiply(float (&d)[64], const u32 (&a)[4], u64 x, u32 add) {
#define EIGHT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %69, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(add));
#undef EIGHT
}

}  // namespace hopper
#endif
#endif
