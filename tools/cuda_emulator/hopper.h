// Hopper's instructions (hopper.cuh), for kernels that run on a processor. Products are done at once.

#pragma once

#include "barrier.h"

namespace hopper {

static inline char *place(u32 address) { return emulator::now()->memory + address; }
static inline u32 shared_address(const void *p) { return (u32)((const char *)p - emulator::now()->memory); }
static inline emulator::Barrier &barrier_at(u32 address) { return *(emulator::Barrier *)place(address); }

static inline void barrier_init(u32 barrier, u32 count) { emulator::make(barrier_at(barrier), count); }
static inline void barriers_made() {}
static inline void arrive(u32 barrier) { emulator::arrive(barrier_at(barrier)); }
static inline void expect(u32 barrier, u32 bytes) { emulator::expect(barrier_at(barrier), bytes); }
static inline void wait(u32 barrier, u32 parity) { emulator::wait(barrier_at(barrier), parity); }
static inline void copy(u32 to, const void *from, u32 bytes, u32 barrier) { emulator::fetch(place(to), from, bytes, barrier_at(barrier)); }

static inline void take_turn(u32 own) { emulator::services->meet_some(emulator::now(), 1 + own, 256, true); }
static inline void give_turn(u32 other) { emulator::services->meet_some(emulator::now(), 1 + other, 256, false); }
static inline void few_registers() {}
static inline void many_registers() {}
template <class T> static inline void pin(T &) {}
static inline void begin() {}
static inline void commit() {}
static inline void finish() {}

// What the warps of a block hand each other for a product, in two sets as their words are: 16 outputs times 128 rows.
static thread_local float sums[2][32][16][128];
static thread_local u64 described[32];

static void multiply_all(emulator::Warp *warp, u32 generation) {
    const u32 own = emulator::now()->thread.x / 32;
    float(*d)[128] = sums[generation % 2][own];
    float a[16][16], b[16][128];
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 j = 0; j < 4; j++)
            for (u32 p = 0; p < 2; p++)
                a[lane / 4 + 8 * (j % 2)][2 * (lane % 4) + 8 * (j / 2) + p] = emulator::widen(warp->words[generation % 2][lane][j] >> 16 * p & 0xffff);
    // Core matrices of 8 rows x 16 bytes, the halves of the inputs and the groups of rows as far apart as the descriptor says.
    const u64 x = described[own];
    const char *from = place((u32)(x & 0x3fff) << 4);
    const u32 halves = (u32)(x >> 16 & 0x3fff) << 4, groups = (u32)(x >> 32 & 0x3fff) << 4;
    for (u32 row = 0; row < 128; row++)
        for (u32 k = 0; k < 16; k++) b[k][row] = emulator::widen(*(const u16 *)(from + row / 8 * groups + k / 8 * halves + row % 8 * 16 + k % 8 * 2));
    // The order of mma (kernel.h): input by input.
    for (u32 k = 0; k < 16; k++)
        for (u32 output = 0; output < 16; output++)
            for (u32 row = 0; row < 128; row++) d[output][row] = fmaf(a[output][k], b[k][row], d[output][row]);
}

static inline void multiply(float (&d)[64], const u32 (&a)[4], u64 x, u32 add) {
    const emulator::Thread *self = emulator::now();
    emulator::Warp *warp = self->warp;
    const u32 set = warp->generation % 2, own = self->thread.x / 32, output = self->lane / 4, row = 2 * (self->lane % 4);
    memcpy(warp->words[set][self->lane], a, sizeof a);
    described[own] = x;
    float(*all)[128] = sums[set][own];
    for (u32 i = 0; i < 64; i++) all[output + 8 * (i % 4 / 2)][8 * (i / 4) + row + i % 2] = add ? d[i] : 0.f;
    emulator::meet(multiply_all);
    for (u32 i = 0; i < 64; i++) d[i] = all[output + 8 * (i % 4 / 2)][8 * (i / 4) + row + i % 2];
}

}  // namespace hopper
