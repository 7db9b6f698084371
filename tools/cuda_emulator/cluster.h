// What blocks of a cluster do with each other (cluster.cuh), for kernels that run on a processor. Copies happen when they are waited for, so that
// whoever does not wait reads what was there before; what is sent is there at once, and whoever does not wait for it reads before others send.
//
// Threads of all blocks of a cluster run as those of one block do. Nothing may be declared __shared__ in such a kernel: its blocks would share it.

#pragma once

#include "barrier.h"

#define CLUSTER(blocks) emulator_cluster_##blocks

namespace cluster {

struct Pending {
    void *to;
    const void *from;
    bool there;
};
constexpr u32 MOST = 128;  // copies of a thread that nobody has waited for
static thread_local Pending pending[emulator::CLUSTER_THREADS][MOST];
static thread_local u32 waiting[emulator::CLUSTER_THREADS];

static inline u32 own() { return emulator::services->rank(emulator::now()) * blockDim.x + threadIdx.x; }

static inline void copy(void *to, const void *from, bool there) {
    u32 &count = waiting[own()];
    if (count == MOST) __builtin_trap();
    pending[own()][count++] = {to, from, there};
}
static inline void copied() {
    u32 &count = waiting[own()];
    for (u32 i = 0; i < count; i++) {
        const Pending &p = pending[own()][i];
        if (p.there) memcpy(p.to, p.from, 16);
        else memset(p.to, 0, 16);
    }
    count = 0;
}

static inline void barrier(u64 *at, u32 count) { emulator::make(*(emulator::Barrier *)at, count); }
static inline void arrive(u64 *barrier) { emulator::arrive(*(emulator::Barrier *)barrier); }
static inline void barriers_made() {}
static inline void expect(u64 *barrier, u32 bytes) { emulator::expect(*(emulator::Barrier *)barrier, bytes); }
static inline void arrived(u64 *barrier, u32 parity) { emulator::wait(*(emulator::Barrier *)barrier, parity); }
static inline void received(u64 *barrier, u32 parity) { arrived(barrier, parity); }
static inline void fetch(void *to, const void *from, u32 bytes, u64 *barrier) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16) __builtin_trap();
    emulator::fetch(to, from, bytes, *(emulator::Barrier *)barrier);
}

static inline void begun() {
    waiting[own()] = 0;
    emulator::services->begun(emulator::now());
}
static inline void all_begun() { emulator::services->all_begun(emulator::now()); }
static inline void send(u32 block, float *to, const float (&v)[4], u64 *barrier) {
    char *const here = emulator::now()->memory, *const there = emulator::services->memory_of(emulator::now(), block);
    emulator::Barrier &box = *(emulator::Barrier *)(there + ((char *)barrier - here));
    if (box.awaited != 1) __builtin_trap();  // nobody has made it yet
    memcpy(there + ((char *)to - here), v, 16);
    emulator::came(box, 16);
}

}  // namespace cluster
