// What the scheduler and the kernels know of each other.

#pragma once

#include <stdint.h>

namespace emulator {

struct Dim {
    uint32_t x, y, z;
};

// What the lanes of a warp hand each other. Two sets: a lane may be one exchange ahead of another, and no more.
constexpr int WORDS = 12;
struct Warp {
    uint32_t words[2][32][WORDS];
    uint32_t generation, arrived, lanes, left;  // lanes: that began; left: that returned
};

struct Block;
struct Group;

// A thread of the processor has a region of stacks for the threads of a block, at a multiple of its size. In place of the first stack lies what is
// known of each thread, so that who runs is told by where its stack is: nothing has to be set when they take turns.
constexpr uintptr_t STACK = 256 << 10, REGION = 1024 << 20, FIBER = 112;

// Blocks of a cluster, and threads of all of them, at most.
constexpr uint32_t CLUSTER_BLOCKS = 8, CLUSTER_THREADS = 2048;

// A thread of a block, as its kernel sees it.
struct Thread {
    Dim thread, block, threads, blocks;
    uint32_t lane;
    Warp *warp;
    Block *of;     // which is a cluster of blocks for kernels that have one
    Group *group;  // the threads of its own block
    char *memory;  // of the size given at launch
};

static inline Thread *thread_at(uintptr_t stack) { return (Thread *)((stack & ~(REGION - 1)) + stack % REGION / STACK * FIBER); }
static inline __attribute__((always_inline)) Thread *now() { return thread_at((uintptr_t)__builtin_frame_address(0)); }

// A copy under way, and what is done when it comes.
struct Copy {
    void (*arrives)(const Copy &);
    const void *from;
    char *to, *barrier;
    uint32_t bytes;
};

// What the scheduler does for kernels.
struct Services {
    // Waits for all lanes of the warp; the last one to come does `finish` before the others go on.
    void (*meet)(Thread *, void (*finish)(Warp *, uint32_t generation));
    // Waits for all threads of the block that have not returned; says whether any brought a value other than zero.
    int (*meet_block)(Thread *, int value);
    // One of 16 barriers of the block: comes to it, and waits, if it is to, until as many threads as `count` came.
    void (*meet_some)(Thread *, uint32_t barrier, uint32_t count, bool waits);
    // Takes a copy, which arrives when no thread of the block can go on without one, or at once (barrier.h).
    void (*later)(Thread *, Copy);
    // Lets others go on until something has happened that somebody may wait for, and says that it has.
    void (*pause)(Thread *);
    void (*happened)(Thread *);
    // Of a cluster: says that a thread has begun; waits until all have; the number of its block; the memory of another.
    void (*begun)(Thread *);
    void (*all_begun)(Thread *);
    uint32_t (*rank)(Thread *);
    char *(*memory_of)(Thread *, uint32_t rank);
};

// A kernel that unpacks its arguments.
typedef void (*Entry)(void **arguments);

}  // namespace emulator
