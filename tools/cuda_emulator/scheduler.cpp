// Fibers, warps and blocks.
//
// Threads of a block run in turns on one thread of the processor, each until it waits or returns. The order is that of their numbers unless
// MLXCEL_EMULATOR_ORDER says `reverse` or `mixed`: a result that depends on it lacks a barrier. What no thread can be blamed for ends the
// launch with words: threads that wait for each other for ever, a lane that returned before its warp met.

#include "scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

constexpr size_t STACK = 256 << 10;
constexpr uint32_t MOST_THREADS = 1024, MEMORY = 256 << 10;

#if defined(__x86_64__)
// Saves what a call keeps on the stack, and goes on with another stack.
extern "C" void emulator_switch(void **save, void *to);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch,@function
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulator_switch,.-emulator_switch
)");
struct Place {
    void *at;
    void begin(char *stack, void (*entry)()) {
        // The stack as the switch leaves it, then the entry; a called function finds its stack 8 past a multiple of 16.
        void **top = (void **)(stack + STACK) - 1;
        *--top = (void *)entry;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        at = top;
    }
};
static inline void go(Place &from, Place &to) { emulator_switch(&from.at, to.at); }
#else
struct Place {
    ucontext_t at;
    void begin(char *stack, void (*entry)()) {
        getcontext(&at);
        at.uc_stack.ss_sp = stack, at.uc_stack.ss_size = STACK, at.uc_link = nullptr;
        makecontext(&at, entry, 0);
    }
};
static inline void go(Place &from, Place &to) { swapcontext(&from.at, &to.at); }
#endif

enum Wait { READY, FOR_WARP, FOR_BLOCK, DONE };

struct Fiber {
    Thread thread;  // first: a Thread * is a Fiber *
    Place place;
    Wait wait;
    uint32_t generation;
};

struct Block {
    Place scheduler;
    const Launch *launch;
    void **arguments;
    uint32_t generation, arrived, live;
    int any, seen;  // brought to this barrier; brought to the last
    const char *wrong;
};

static thread_local Fiber *running;

static void wait(Fiber *self, Wait what, uint32_t generation) {
    self->wait = what, self->generation = generation;
    Block *block = self->thread.of;
    go(self->place, block->scheduler);
}

static void meet(Thread *thread, void (*finish)(Warp *, uint32_t)) {
    Warp *warp = thread->warp;
    const uint32_t generation = warp->generation;
    if (warp->left) {
        thread->of->wrong = "a lane returned before its warp met";
        wait((Fiber *)thread, DONE, 0);
    }
    if (++warp->arrived < warp->lanes) return wait((Fiber *)thread, FOR_WARP, generation);
    if (finish) finish(warp, generation);
    warp->arrived = 0;
    warp->generation++;
}

static void release(Block *block) {
    block->seen = block->any, block->any = 0, block->arrived = 0;
    block->generation++;
}

static int meet_block(Thread *thread, int value) {
    Block *block = thread->of;
    block->any |= value != 0;
    const uint32_t generation = block->generation;
    if (++block->arrived == block->live) {
        release(block);
    } else {
        wait((Fiber *)thread, FOR_BLOCK, generation);
    }
    return block->seen;
}

const Services SERVICES = {meet, meet_block};

static void entry() {
    Fiber *self = running;
    Block *block = self->thread.of;
    block->launch->kernel->entry(&self->thread, block->arguments);
    if (self->thread.warp->arrived) block->wrong = "a lane returned while others of its warp wait for it";
    self->thread.warp->left++;
    block->live--;
    if (block->live && block->arrived == block->live) release(block);
    wait(self, DONE, 0);
}

// What a thread of the processor needs for a block.
struct Bench {
    char *stacks, *memory;
    std::vector<Fiber> fibers{MOST_THREADS};
    std::vector<Warp> warps{MOST_THREADS / 32};

    Bench() {
        auto map = [](size_t bytes) { return (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
        stacks = map(STACK * MOST_THREADS);
        memory = map(MEMORY);
        if (stacks == MAP_FAILED || memory == MAP_FAILED) perror("cuda_emulator: stacks"), abort();
    }
};

static bool ready(const Fiber &fiber, const Block &block) {
    switch (fiber.wait) {
        case READY: return true;
        case FOR_WARP: return fiber.generation != fiber.thread.warp->generation;
        case FOR_BLOCK: return fiber.generation != block.generation;
        default: return false;
    }
}

static const char *run_block(Bench &bench, const Launch &launch, void **arguments, Dim at) {
    enum Order { FORWARD, REVERSE, MIXED };
    static const Order order = [] {
        const char *wanted = getenv("MLXCEL_EMULATOR_ORDER");
        return !wanted ? FORWARD : !strcmp(wanted, "reverse") ? REVERSE : !strcmp(wanted, "mixed") ? MIXED : FORWARD;
    }();
    const uint32_t threads = launch.threads.x, warps = (threads + 31) / 32;
    Block block = {};
    block.launch = &launch, block.arguments = arguments, block.live = threads;
    memset(bench.memory, 0xff, launch.memory);  // NaN: nothing is there at first
    for (uint32_t w = 0; w < warps; w++) {
        Warp &warp = bench.warps[w];
        warp.generation = warp.arrived = warp.left = 0;
        warp.lanes = threads - 32 * w < 32 ? threads - 32 * w : 32;
    }
    for (uint32_t i = 0; i < threads; i++) {
        Fiber &fiber = bench.fibers[i];
        fiber.thread = {{i, 0, 0}, at, launch.threads, launch.blocks, i % 32, &bench.warps[i / 32], &block, bench.memory};
        fiber.place.begin(bench.stacks + i * STACK, entry);
        fiber.wait = READY;
    }
    uint32_t left = threads, turn = at.x * 7 + at.y;
    while (left) {
        bool moved = false;
        const uint32_t start = turn;
        for (uint32_t i = 0; i < warps && !block.wrong; i++) {
            const uint32_t w = order == FORWARD ? i : order == REVERSE ? warps - 1 - i : (i + start) % warps;
            bool again = true;
            while (again) {
                again = false;
                const uint32_t lanes = bench.warps[w].lanes;
                for (uint32_t l = 0; l < lanes; l++) {
                    const uint32_t lane = order == FORWARD ? l : order == REVERSE ? lanes - 1 - l : (l + turn) % lanes;
                    Fiber &fiber = bench.fibers[w * 32 + lane];
                    if (!ready(fiber, block)) continue;
                    fiber.wait = READY;
                    running = &fiber;
                    go(block.scheduler, fiber.place);
                    if (block.wrong) return block.wrong;
                    if (fiber.wait == DONE) left--;
                    again = moved = true;
                }
                turn++;
            }
        }
        if (left && !moved) return "its threads wait for each other: a barrier that not all of them reach";
    }
    return block.wrong;
}

// Threads of the processor that take blocks of one launch after another.
class Pool {
  public:
    explicit Pool(uint32_t count) {
        for (uint32_t i = 1; i < count; i++) std::thread([this] { follow(); }).detach();
    }

    void run(uint64_t blocks, const std::function<void(Bench &, uint64_t)> &each) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            work = &each, total = blocks, next = 0, busy = 0, round++;
        }
        if (blocks > 1) wake.notify_all();
        take(each);
        std::unique_lock<std::mutex> lock(mutex);
        work = nullptr;
        idle.wait(lock, [this] { return busy == 0; });
    }

  private:
    std::mutex mutex;
    std::condition_variable wake, idle;
    const std::function<void(Bench &, uint64_t)> *work = nullptr;
    uint64_t total = 0, round = 0;
    std::atomic<uint64_t> next{0};
    int busy = 0;

    void take(const std::function<void(Bench &, uint64_t)> &each) {
        static thread_local Bench *bench = new Bench;
        for (uint64_t i; (i = next++) < total;) each(*bench, i);
    }

    void follow() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return round != seen && work; });
            seen = round, busy++;
            const auto &each = *work;
            lock.unlock();
            take(each);
            lock.lock();
            if (--busy == 0) idle.notify_all();
        }
    }
};

std::string run(const Launch &launch) {
    static Pool *pool = [] {
        const char *wanted = getenv("MLXCEL_EMULATOR_THREADS");
        const uint32_t count = wanted ? atoi(wanted) : std::thread::hardware_concurrency();
        return new Pool(count ? count : 1);
    }();
    const std::string where = launch.kernel->name + ": ";
    if (launch.threads.x == 0 || launch.threads.x > MOST_THREADS || launch.threads.y != 1 || launch.threads.z != 1)
        return where + "1 to 1024 threads in one dimension expected";
    if (launch.memory > MEMORY) return where + "more shared memory than a block can have";
    std::vector<void *> arguments;
    for (const uint64_t &argument : launch.arguments) arguments.push_back((void *)&argument);
    std::mutex mutex;
    std::string wrong;
    const Dim grid = launch.blocks;
    pool->run((uint64_t)grid.x * grid.y * grid.z, [&](Bench &bench, uint64_t i) {
        const Dim at = {(uint32_t)(i % grid.x), (uint32_t)(i / grid.x % grid.y), (uint32_t)(i / grid.x / grid.y)};
        if (const char *what = run_block(bench, launch, arguments.data(), at)) {
            std::lock_guard<std::mutex> lock(mutex);
            if (wrong.empty()) wrong = where + "block " + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ": " + what;
        }
    });
    return wrong;
}

}  // namespace emulator
