// Barriers in shared memory (hopper.cuh, cluster.cuh), for kernels that run on a processor, and copies that they hear of. Copies arrive as late as
// can be, so that whoever does not wait for one reads what was there before; or at once, if MLXCEL_EMULATOR_COPIES says `early`, so that whoever
// asks for one too early finds it in place of what was there.

#pragma once

namespace emulator {

// Threads that are awaited in each phase and those still to come, bytes still to come, and the phase's parity.
struct Barrier {
    unsigned char awaited, left;
    u16 parity;
    int bytes;
};
static_assert(sizeof(Barrier) == 8, "as large as the hardware's");

static inline void step(Barrier &b) {
    if (b.left || b.bytes) return;
    b.parity ^= 1, b.left = b.awaited;
    services->happened(now());
}
static inline void make(Barrier &b, u32 count) { b = {(unsigned char)count, (unsigned char)count, 0, 0}; }
static inline void arrive(Barrier &b) {
    b.left--;
    step(b);
}
static inline void expect(Barrier &b, u32 bytes) {
    b.bytes += bytes;
    arrive(b);
}
static inline void came(Barrier &b, u32 bytes) {
    b.bytes -= bytes;
    step(b);
}
static inline void wait(const Barrier &b, u32 parity) {
    while (b.parity == parity) services->pause(now());
}

static void arrives(const Copy &c) {
    memcpy(c.to, c.from, c.bytes);
    came(*(Barrier *)c.barrier, c.bytes);
}
static inline void fetch(void *to, const void *from, u32 bytes, Barrier &b) { services->later(now(), {arrives, from, (char *)to, (char *)&b, bytes}); }

}  // namespace emulator
