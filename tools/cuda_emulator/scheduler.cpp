// Fibers, warps and blocks.
//
// Threads of a block run in turns on one thread of the processor, each until it waits or returns. The order is that of their numbers unless
// MLXCEL_EMULATOR_ORDER says `reverse` or `mixed`: a result that depends on it lacks a barrier. What no thread can be blamed for ends the
// launch with words: threads that wait for each other for ever, a lane that returned before its warp met.

#include "scheduler.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace emulator {

constexpr uint32_t MOST_THREADS = 1024, MEMORY = 256 << 10;  // of a block

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
    void begin(char *end, void (*entry)()) {
        // The stack as the switch leaves it, then the entry; a called function finds its stack 8 past a multiple of 16.
        void **top = (void **)end - 1;
        *--top = (void *)entry;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        at = top;
    }
};
static inline void go(Place &from, Place &to) { emulator_switch(&from.at, to.at); }
#else
struct Place {
    ucontext_t *at;  // made once, as what a thread is known by has to be small
    void begin(char *end, void (*entry)()) {
        if (!at) at = new ucontext_t;
        getcontext(at);
        at->uc_stack.ss_sp = end - STACK / 2, at->uc_stack.ss_size = STACK / 2, at->uc_link = nullptr;
        makecontext(at, entry, 0);
    }
};
static inline void go(Place &from, Place &to) {
    if (!from.at) from.at = new ucontext_t;
    swapcontext(from.at, to.at);
}
#endif

struct Fiber {
    Thread thread;  // first: a Thread * is a Fiber *
    Place place;
    const uint32_t *counter;  // what it waits for: that this is another than
    uint32_t stale;
};
static_assert(sizeof(Fiber) <= FIBER && FIBER * (CLUSTER_THREADS + 1) <= STACK && STACK * (CLUSTER_THREADS + 1) <= REGION, "what shared.h says");

static const uint32_t ALWAYS = 1;  // stale at 0: may go on; stale at 1: never will

enum Order { FORWARD, REVERSE, MIXED };

static Order order() {
    static const Order order = [] {
        const char *wanted = getenv("MLXCEL_EMULATOR_ORDER");
        return !wanted ? FORWARD : !strcmp(wanted, "reverse") ? REVERSE : !strcmp(wanted, "mixed") ? MIXED : FORWARD;
    }();
    return order;
}

// Threads that have a barrier.
struct Group {
    uint32_t generation, arrived, live, rank;
    int any, seen;  // brought to this barrier; brought to the last
    char *memory;
};

// A block of threads, or a cluster of blocks whose threads run together.
struct Block {
    Place *scheduler;
    const Launch *launch;
    void **arguments;
    uint32_t generation, live;  // barriers passed by any group; threads of all groups
    Group groups[CLUSTER_BLOCKS];
    uint32_t begun, all_begun;
    uint32_t events;  // what happened besides: a barrier of some threads, one in shared memory
    uint32_t some[16], some_arrived[16];
    std::vector<Copy> copies;  // under way
    const char *wrong;

    // The sweep over the lanes of a warp, again and again until none can go on; then the next warp's.
    Order order;
    char *fibers;  // of its first thread
    Warp *warps, *warp;
    uint32_t count, at, lanes, lane, shift, turn, start, warp_was, block_was, events_was;
    bool moved;

    Fiber *fiber(uint32_t i) { return (Fiber *)(fibers + i * FIBER); }

    void sweep() {
        const uint32_t w = order == FORWARD ? at : order == REVERSE ? count - 1 - at : (at + start) % count;
        warp = warps + w, lanes = warp->lanes, lane = 0;
        shift = order == MIXED ? turn % lanes : 0;
        warp_was = warp->generation, block_was = generation, events_was = events;
    }

    // Whose turn it is; nobody's if all have returned, or none can go on.
    Fiber *next() {
        while (live) {
            while (lane < lanes) {
                uint32_t l = lane++ + shift;
                if (l >= lanes) l -= lanes;
                if (order == REVERSE) l = lanes - 1 - l;
                Fiber *one = fiber((warp - warps) * 32 + l);
                if (*one->counter != one->stale) return moved = true, one;
            }
            turn++;
            // Who was passed by can go on only if somebody moved one of the counters since.
            if (warp->generation == warp_was && generation == block_was && events == events_was && ++at == count) {
                if (!moved && copies.empty()) return nullptr;
                if (!moved) {
                    const Copy first = copies.front();
                    copies.erase(copies.begin());
                    first.arrives(first);
                }
                at = 0, moved = false, start = turn;
            }
            sweep();
        }
        return nullptr;
    }
};

static void give_way(Fiber *self) {
    Block *block = self->thread.of;
    Fiber *next = block->wrong ? nullptr : block->next();
    if (next != self) go(self->place, next ? next->place : *block->scheduler);
}

static void wait(Fiber *self, const uint32_t *counter) {
    self->counter = counter, self->stale = *counter;
    give_way(self);
}

static void meet(Thread *thread, void (*finish)(Warp *, uint32_t)) {
    Warp *warp = thread->warp;
    if (warp->left) {
        thread->of->wrong = "a lane returned before its warp met";
        wait((Fiber *)thread, &ALWAYS);
    }
    if (++warp->arrived < warp->lanes) return wait((Fiber *)thread, &warp->generation);
    if (finish) finish(warp, warp->generation);
    warp->arrived = 0;
    warp->generation++;
}

static void release(Block *block, Group *group) {
    group->seen = group->any, group->any = 0, group->arrived = 0;
    group->generation++, block->generation++;
}

static int meet_block(Thread *thread, int value) {
    Group *group = thread->group;
    group->any |= value != 0;
    if (++group->arrived == group->live) {
        release(thread->of, group);
    } else {
        wait((Fiber *)thread, &group->generation);
    }
    return group->seen;
}

static void meet_some(Thread *thread, uint32_t barrier, uint32_t count, bool waits) {
    Block *block = thread->of;
    if (++block->some_arrived[barrier] == count) {
        block->some_arrived[barrier] = 0;
        block->some[barrier]++, block->events++;
    } else if (waits) {
        wait((Fiber *)thread, &block->some[barrier]);
    }
}

static void later(Thread *thread, Copy copy) {
    static const bool early = [] {
        const char *wanted = getenv("MLXCEL_EMULATOR_COPIES");
        return wanted && !strcmp(wanted, "early");
    }();
    if (early) copy.arrives(copy);
    else thread->of->copies.push_back(copy);
}
static void pause(Thread *thread) { wait((Fiber *)thread, &thread->of->events); }
static void happened(Thread *thread) { thread->of->events++; }


static void begun(Thread *thread) {
    Block *block = thread->of;
    if (++block->begun == thread->threads.x * block->launch->kernel->cluster) block->all_begun++, block->events++;
}
static void all_begun(Thread *thread) {
    if (!thread->of->all_begun) wait((Fiber *)thread, &thread->of->all_begun);
}
static uint32_t rank(Thread *thread) { return thread->group->rank; }
static char *memory_of(Thread *thread, uint32_t rank) { return thread->of->groups[rank].memory; }

const Services SERVICES = {meet, meet_block, meet_some, later, pause, happened, begun, all_begun, rank, memory_of};

static void entry() {
    Thread *self = now();
    Block *block = self->of;
    block->launch->kernel->entry(block->arguments);
    if (self->warp->arrived) block->wrong = "a lane returned while others of its warp wait for it";
    self->warp->left++;
    block->live--;
    Group *group = self->group;
    if (--group->live && group->arrived == group->live) release(block, group);
    wait((Fiber *)self, &ALWAYS);
}

static thread_local uintptr_t own_region;  // of this thread of the processor, if it has one

// What a thread of the processor needs for a block.
struct Bench {
    char *region, *memory_end[CLUSTER_BLOCKS];
    Place scheduler = {};
    std::vector<Warp> warps{CLUSTER_THREADS / 32};

    static char *map(size_t bytes) {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) perror("cuda_emulator: stacks"), abort();
        return (char *)at;
    }

    Bench() {
        region = (char *)(((uintptr_t)map(2 * REGION) + REGION - 1) & ~(REGION - 1));
        own_region = (uintptr_t)region;
        // A stack that is too small, and more shared memory than asked for, end the process.
        for (uint32_t i = 1; i <= CLUSTER_THREADS; i++) mprotect(region + i * STACK, 4096, PROT_NONE);
        for (char *&end : memory_end) {
            end = map(2 * MEMORY) + MEMORY;
            mprotect(end, MEMORY, PROT_NONE);
        }
        stack_t own = {};
        if (sigaltstack(nullptr, &own) == 0 && own.ss_flags & SS_DISABLE) {
            own.ss_flags = 0, own.ss_size = 64 << 10, own.ss_sp = map(own.ss_size);
            sigaltstack(&own, nullptr);
        }
    }

    // Runs the cluster that begins with the block `at`.
    const char *run(const Launch &launch, void **arguments, Dim at) {
        const uint32_t blocks = launch.kernel->cluster, threads = launch.threads.x, warps_each = (threads + 31) / 32;
        Block block = {};
        block.scheduler = &scheduler, block.launch = &launch, block.arguments = arguments, block.live = blocks * threads;
        block.order = order(), block.fibers = region + FIBER, block.warps = warps.data();
        block.count = blocks * warps_each, block.turn = block.start = at.x * 7 + at.y;
        for (uint32_t rank = 0; rank < blocks; rank++) {
            char *memory = memory_end[rank] - (launch.memory + 127) / 128 * 128;
            memset(memory, 0xff, launch.memory);  // NaN: nothing is there at first
            block.groups[rank] = {0, 0, threads, rank, 0, 0, memory};
        }
        for (uint32_t w = 0; w < block.count; w++) {
            Warp &warp = warps[w];
            const uint32_t before = w % warps_each * 32;
            warp.generation = warp.arrived = warp.left = 0;
            warp.lanes = threads - before < 32 ? threads - before : 32;
        }
        // The fibers of a warp lie together, 32 places a warp, whether it is full or not.
        for (uint32_t i = 0; i < blocks * threads; i++) {
            const uint32_t rank = i / threads, thread = i % threads, w = rank * warps_each + thread / 32, place = 32 * w + thread % 32;
            Fiber &fiber = *block.fiber(place);
            Group *group = &block.groups[rank];
            fiber.thread = {{thread, 0, 0}, {at.x + rank, at.y, at.z}, launch.threads, launch.blocks, thread % 32, &warps[w], &block, group, group->memory};
            // Stacks that began at equal places of their pages would share few lines of the processor's cache.
            fiber.place.begin(region + (place + 2) * STACK - place % 64 * 512, entry);
            fiber.counter = &ALWAYS, fiber.stale = 0;
        }
        block.sweep();
        Fiber *first = block.next();
        if (first) go(scheduler, first->place);
        if (block.live && !block.wrong) return "its threads wait for each other: a barrier that not all of them reach";
        return block.wrong;
    }
};

// Threads of the processor that take blocks of one launch after another.
class Pool {
  public:
    explicit Pool(uint32_t count) {
        for (uint32_t i = 1; i < count; i++) std::thread([this] { follow(); }).detach();
    }

    void run(uint64_t blocks, const std::function<void(Bench &, uint64_t)> &each) {
        if (blocks > 1) {
            std::lock_guard<std::mutex> lock(mutex);
            work = &each, total = blocks, next = 0, round++;
            wake.notify_all();
        } else {
            total = blocks, next = 0;
        }
        take(each);
        if (blocks <= 1) return;
        std::unique_lock<std::mutex> lock(mutex);
        work = nullptr;
        lock.unlock();
        briefly([this] { return busy == 0; });
        lock.lock();
        idle.wait(lock, [this] { return busy == 0; });
    }

  private:
    std::mutex mutex;
    std::condition_variable wake, idle;
    const std::function<void(Bench &, uint64_t)> *work = nullptr;
    uint64_t total = 0;
    std::atomic<uint64_t> next{0}, round{0};
    std::atomic<int> busy{0};

    // Launches follow each other closely: some microseconds of waiting awake are shorter than being woken.
    template <class Until> static void briefly(Until until) {
        for (int i = 0; i < 2000 && !until(); i++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }

    void take(const std::function<void(Bench &, uint64_t)> &each) {
        static thread_local Bench *bench = new Bench;
        for (uint64_t i; (i = next++) < total;) each(*bench, i);
    }

    void follow() {
        uint64_t seen = 0;
        for (;;) {
            briefly([&] { return round != seen; });
            std::unique_lock<std::mutex> lock(mutex);
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

// Says which thread of which kernel did what ends the process; then whoever was there before is asked, as the access comes again.
static struct sigaction before[3];
static const int SIGNALS[3] = {SIGSEGV, SIGBUS, SIGFPE};

static void fault(int signal, siginfo_t *info, void *context) {
#if defined(__x86_64__)
    const uintptr_t stack = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    const uintptr_t stack = ((ucontext_t *)context)->uc_mcontext.sp;
#else
    const uintptr_t stack = 0;
#endif
    if (own_region && (stack & ~(REGION - 1)) == own_region) {
        const Thread &t = *thread_at(stack);
        char text[400];
        const int n = snprintf(text, sizeof text, "cuda_emulator: %s: block %u, %u, %u, thread %u: %s at %p\n", t.of->launch->kernel->name.c_str(), t.block.x,
                               t.block.y, t.block.z, t.thread.x, signal == SIGFPE ? "a division by zero" : "an access to memory that is not there,", info->si_addr);
        if (write(2, text, n < (int)sizeof text ? n : sizeof text - 1) < 0) return _exit(1);
    }
    for (int i = 0; i < 3; i++)
        if (SIGNALS[i] == signal) sigaction(signal, &before[i], nullptr);
}

static void watch() {
    struct sigaction own = {};
    own.sa_sigaction = fault, own.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(SIGNALS[i], &own, &before[i]);
}

std::string run(const Launch &launch) {
    static Pool *pool = [] {
        watch();
        const char *wanted = getenv("MLXCEL_EMULATOR_THREADS");
        const uint32_t count = wanted ? atoi(wanted) : std::thread::hardware_concurrency();
        return new Pool(count ? count : 1);
    }();
    const std::string &name = launch.kernel->name;
    if (launch.threads.x == 0 || launch.threads.x > MOST_THREADS || launch.threads.y != 1 || launch.threads.z != 1)
        return name + ": 1 to 1024 threads in one dimension expected";
    if (launch.memory > MEMORY) return name + ": more shared memory than a block can have";
    std::vector<void *> arguments;
    for (const uint64_t &argument : launch.arguments) arguments.push_back((void *)&argument);
    std::mutex mutex;
    std::string wrong;
    const Dim grid = launch.blocks;
    const uint32_t cluster = launch.kernel->cluster;
    if (cluster > CLUSTER_BLOCKS || launch.threads.x * cluster > CLUSTER_THREADS) return name + ": more blocks or threads than a cluster has";
    if (grid.x % cluster) return name + ": blocks of whole clusters expected";
    const uint64_t clusters = (uint64_t)grid.x * grid.y * grid.z / cluster;
    pool->run(clusters, [&](Bench &bench, uint64_t i) {
        i = cluster * (order() == REVERSE ? clusters - 1 - i : i);
        const Dim at = {(uint32_t)(i % grid.x), (uint32_t)(i / grid.x % grid.y), (uint32_t)(i / grid.x / grid.y)};
        if (const char *what = bench.run(launch, arguments.data(), at)) {
            std::lock_guard<std::mutex> lock(mutex);
            if (wrong.empty()) wrong = name + ": block " + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ": " + what;
        }
    });
    return wrong;
}

}  // namespace emulator
