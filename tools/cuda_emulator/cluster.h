// What blocks of a cluster do with each other (cluster.cuh), for kernels that run on a processor. Copies happen when they are waited for, so that
// whoever does not wait reads what was there before; what is sent is there at once, and whoever does not wait for it reads before others send.
//
// Threads of all blocks of a cluster run as those of one block do. Nothing may be declared __shared__ in such a kernel: its blocks would share it.

#pragma once

#define CLUSTER(blocks) emulator_cluster_##blocks

namespace cluster {

struct Pending {
    void *to;
    const void *from;
    bool there;
};
constexpr u32 MOST = 16;  // copies of a thread that nobody has waited for
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

struct Mailbox { u32 awaited, made; };
static_assert(sizeof(Mailbox) == 8, "as large as the hardware's");
constexpr u32 MADE = 0x6d61696c;

static inline void mailbox(u64 *barrier, u32 bytes) { *(Mailbox *)barrier = {bytes, MADE}; }
static inline void begun() {
    waiting[own()] = 0;
    emulator::services->begun(emulator::now());
}
static inline void all_begun() { emulator::services->all_begun(emulator::now()); }
static inline void send(u32 block, float *to, const float (&v)[4], u64 *barrier) {
    char *const here = emulator::now()->memory, *const there = emulator::services->memory_of(emulator::now(), block);
    Mailbox &box = *(Mailbox *)(there + ((char *)barrier - here));
    if (box.made != MADE) __builtin_trap();
    memcpy(there + ((char *)to - here), v, 16);
    box.awaited -= 16;
    if (!box.awaited) emulator::services->happened(emulator::now());
}
static inline void received(u64 *barrier) {
    while (((Mailbox *)barrier)->awaited) emulator::services->pause(emulator::now());
}

}  // namespace cluster
