// What blocks of a cluster do with each other, and copies into shared memory, each as a function (ptx.cuh has the others): compute capability 9.0
// and more.

#if __CUDA_ARCH__ >= 900
#ifdef MLXCEL_EMULATED
#include "cluster.h"
#else
namespace cluster {

#define CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes to shared memory, or puts zeros there if not `there`, past the first-level cache. `copied` waits for all that the thread began.
//
// Through that cache one pass in fifty found old bytes on an H200, where launches overlap: what fits is that a block of the launch before, which
// wrote 4 of 32 bytes on the same processor, left the others there as they were (docs/SPEED.md, "Rings of weights").
__device__ __forceinline__ void copy(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A barrier in shared memory, passed again and again: each time once `count` threads came to it, and the bytes that they said to expect. One
// thread makes it; `barriers_made` stands before any use by others.
__device__ __forceinline__ void barrier(u64 *at, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory"); }
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void arrive(u64 *barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory"); }
__device__ __forceinline__ void expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits until it was passed: `parity` 0 for the first time, 1 for the second, and so on by turns. `received` sees what other blocks sent, for
// which it throws away the first-level cache; `arrived` sees what this block asked for.
#define WAIT(NAME, SCOPE) \
    __device__ __forceinline__ void NAME(u64 *barrier, u32 parity) { \
        u32 done; \
        do { \
            asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire." SCOPE ".shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" \
                         : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory"); \
        } while (!done); \
    }
WAIT(arrived, "cta")
WAIT(received, "cluster")
#undef WAIT
// Asks for a multiple of 16 bytes, which come to shared memory while the thread goes on.
__device__ __forceinline__ void fetch(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
// All threads of all blocks come to both: behind `all_begun` the memory and the barriers of every block are there.
__device__ __forceinline__ void begun() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void all_begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Sends 16 bytes to a block: to the same place of its shared memory, and the same barrier there hears of it.
__device__ __forceinline__ void send(u32 block, float *to, const float (&v)[4], u64 *barrier) {
    u32 there, box;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(block));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(box) : "r"(shared_address(barrier)), "r"(block));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(there), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(box) : "memory");
}

}  // namespace cluster
#endif
#endif
