// libcuda.so: as much of the driver's interface as mlxcel-cuda calls, over host memory.
//
// Work given to the stream is kept until somebody waits for it, with pointers as they were given: a buffer that is written too early shows.
// Memory is full of NaN at first, and an access past its end ends the process. What a test may want to be different is said by environment
// variables (README.md).

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <string>
#include <vector>

#include "scheduler.h"

using namespace emulator;

#define API extern "C" __attribute__((visibility("default"))) int

enum Result { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

// As in cuda.h.
struct Config {
    Dim blocks, threads;
    unsigned memory;
    void *stream, *attributes;
    unsigned attribute_count;
};

namespace {

struct Operation {
    enum { LAUNCH, COPY, FILL } what;
    Launch launch;
    void *to;
    const void *from;
    std::vector<char> taken;  // of a source that may change: its bytes
    size_t bytes;
    int byte;
};

struct Graph {
    std::vector<Operation> operations;
};

struct Module {
    void *library;
    std::map<std::string, Kernel *> kernels;
};

struct Stream {
    std::vector<Operation> queue;
    Graph *recording = nullptr;
};

struct State {
    std::recursive_mutex mutex;
    std::set<Stream *> streams;
    std::map<char *, size_t> memory, pinned;  // begin -> bytes
    size_t used = 0;
    uint64_t launches = 0;
    bool failed = false;
};

State &state() {
    static State *one = new State;
    return *one;
}

uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

// Whether kernels do nothing: what time is left is the host's.
bool idle() {
    static const bool set = number("MLXCEL_EMULATOR_IDLE", 0);
    return set;
}

size_t total_memory() { return number("MLXCEL_EMULATOR_MEMORY", 8ull << 30); }

// Pages of their own, the end of the last one at the end of the memory, and nothing behind it.
char *allocate(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    char *at = (char *)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    mprotect(at + pages, page, PROT_NONE);
    // Sizes are multiples of 512 here, and addresses have to be.
    return at + (pages - bytes) / 512 * 512;
}

// The addresses stay taken, so that a use after this is an access to nothing, too.
void release(char *at, size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    mmap((char *)((uintptr_t)at / page * page), pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void perform(Operation &o) {
    State &s = state();
    if (s.failed) return;
    switch (o.what) {
        case Operation::LAUNCH: {
            static const uint64_t last = number("MLXCEL_EMULATOR_FAIL_AFTER", UINT64_MAX);
            if (idle()) break;
            const std::string wrong = s.launches++ < last ? run(o.launch) : o.launch.kernel->name + ": the device is lost, as MLXCEL_EMULATOR_FAIL_AFTER asks";
            if (!wrong.empty()) fprintf(stderr, "cuda_emulator: %s\n", wrong.c_str()), s.failed = true;
            break;
        }
        case Operation::COPY:
            // What kernels would have found is nothing: a zero is at least a number.
            if (idle()) memset(o.to, 0, o.bytes);
            else memcpy(o.to, o.taken.empty() ? o.from : o.taken.data(), o.bytes);
            break;
        case Operation::FILL: memset(o.to, o.byte, o.bytes); break;
    }
}

int finish(Stream &stream) {
    std::vector<Operation> queue;
    queue.swap(stream.queue);
    for (Operation &o : queue) perform(o);
    return state().failed ? LAUNCH_FAILED : OK;
}

// What is freed may be used by any stream.
void finish_all() {
    for (Stream *stream : state().streams) finish(*stream);
}

int add(void *to, Operation o) {
    Stream &stream = *(Stream *)to;
    if (state().failed) return LAUNCH_FAILED;
    (stream.recording ? stream.recording->operations : stream.queue).push_back(std::move(o));
    return OK;
}

// Whether memory lies whole in one of some allocations.
bool inside(const std::map<char *, size_t> &allocations, const void *p, size_t bytes) {
    auto after = allocations.upper_bound((char *)p);
    if (after == allocations.begin()) return false;
    auto own = std::prev(after);
    return (char *)p + bytes <= own->first + own->second;
}

}  // namespace

#define LOCK std::lock_guard<std::recursive_mutex> lock(state().mutex)

API cuDriverGetVersion(int *version) { return *version = number("MLXCEL_EMULATOR_DRIVER", 13000), OK; }
API cuInit(unsigned) { return number("MLXCEL_EMULATOR_DEVICES", 1) ? OK : NO_DEVICE; }
API cuDeviceGetCount(int *count) { return *count = number("MLXCEL_EMULATOR_DEVICES", 1), OK; }
API cuDeviceGet(int *device, int ordinal) { return *device = ordinal, OK; }
API cuDeviceGetName(char *name, int size, int) { return snprintf(name, size, "a processor that emulates CUDA"), OK; }

API cuDeviceGetAttribute(int *value, int attribute, int) {
    const int capability = number("MLXCEL_EMULATOR_CAPABILITY", 80);
    switch (attribute) {
        case 75: *value = capability / 10; break;
        case 76: *value = capability % 10; break;
        case 16: *value = number("MLXCEL_EMULATOR_PROCESSORS", 8); break;
        case 97: *value = 227 << 10; break;
        default: return INVALID;
    }
    return OK;
}

API cuDevicePrimaryCtxRetain(void **context, int) { return *context = &state(), OK; }
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuCtxSetCurrent(void *) { return OK; }
API cuStreamSynchronize(void *stream) { LOCK; return finish(*(Stream *)stream); }

API cuStreamCreate(void **stream, unsigned) {
    LOCK;
    return *stream = *state().streams.insert(new Stream).first, OK;
}

API cuStreamDestroy_v2(void *stream) {
    LOCK;
    finish(*(Stream *)stream);
    state().streams.erase((Stream *)stream);
    return delete (Stream *)stream, OK;
}

API cuMemGetInfo_v2(size_t *free, size_t *total) {
    LOCK;
    *total = total_memory();
    return *free = *total - state().used, OK;
}

API cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    LOCK;
    State &s = state();
    if (!bytes) return INVALID;
    char *at = s.used + bytes <= total_memory() ? allocate(bytes) : nullptr;
    if (!at) return OUT_OF_MEMORY;
    // A word that is neither a number nor a place, where somebody computes with it. Large memory stays untouched, so that it costs nothing before it is used.
    if (bytes <= 64u << 20 && !idle()) memset(at, 0xff, bytes);
    s.memory[at] = bytes, s.used += bytes;
    return *address = (uint64_t)at, OK;
}

API cuMemFree_v2(uint64_t address) {
    LOCK;
    State &s = state();
    finish_all();
    auto own = s.memory.find((char *)address);
    if (own == s.memory.end()) return INVALID;
    s.used -= own->second;
    release(own->first, own->second);
    s.memory.erase(own);
    return OK;
}

API cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    LOCK;
    *address = calloc(1, bytes);
    if (!*address) return OUT_OF_MEMORY;
    return state().pinned[(char *)*address] = bytes, OK;
}

API cuMemFreeHost(void *address) {
    LOCK;
    finish_all();
    state().pinned.erase((char *)address);
    return free(address), OK;
}

API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    LOCK;
    if (!inside(state().memory, (void *)to, bytes)) return INVALID;
    Operation o = {Operation::COPY, {}, (void *)to, from, {}, bytes, 0};
    // The driver takes other memory before it returns.
    if (!inside(state().pinned, from, 1)) o.taken.assign((const char *)from, (const char *)from + bytes);
    return add(stream, std::move(o));
}

API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    LOCK;
    if (!inside(state().memory, (const void *)from, bytes)) return INVALID;
    return add(stream, {Operation::COPY, {}, to, (const void *)from, {}, bytes, 0});
}

API cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *stream) {
    LOCK;
    if (!inside(state().memory, (void *)to, bytes)) return INVALID;
    return add(stream, {Operation::FILL, {}, (void *)to, nullptr, {}, bytes, byte});
}

// A module is a shared library behind its length (compiler.cpp). It stays loaded, as kernels of it may be anywhere.
API cuModuleLoadData(void **module, const void *image) {
    LOCK;
    uint64_t bytes;
    if (memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
    memcpy(&bytes, (const char *)image + 8, 8);
    const char *temporary = getenv("TMPDIR");
    std::string path = std::string(temporary ? temporary : "/tmp") + "/cuda_emulator_XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return INVALID_IMAGE;
    const bool written = write(file, (const char *)image + 16, bytes) == (ssize_t)bytes;
    close(file);
    void *library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) fprintf(stderr, "cuda_emulator: %s\n", dlerror());
    unlink(path.c_str());
    auto attach = library ? (void (*)(const Services *))dlsym(library, "emulator_attach") : nullptr;
    if (!attach) return INVALID_IMAGE;
    attach(&SERVICES);
    return *module = new Module{library, {}}, OK;
}

API cuModuleGetFunction(void **function, void *module, const char *name) {
    LOCK;
    Module *m = (Module *)module;
    Kernel *&kernel = m->kernels[name];
    if (!kernel) {
        auto entry = (Entry)dlsym(m->library, (std::string("emulator_enter_") + name).c_str());
        if (!entry) return m->kernels.erase(name), NOT_FOUND;
        auto count = (const unsigned *)dlsym(m->library, (std::string("emulator_count_") + name).c_str());
        auto cluster = (const unsigned *)dlsym(m->library, (std::string("emulator_cluster_") + name).c_str());
        kernel = new Kernel{entry, name, count ? *count : 0, cluster ? *cluster : 1};
    }
    return *function = kernel, OK;
}

API cuModuleGetGlobal_v2(uint64_t *, size_t *, void *, const char *) { return NOT_FOUND; }
API cuFuncSetAttribute(void *, int, int) { return OK; }

// So few that clusters go on to more work while there is any.
API cuOccupancyMaxActiveClusters(int *clusters, void *, const Config *) { return *clusters = number("MLXCEL_EMULATOR_CLUSTERS", 2), OK; }

API cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **) {
    LOCK;
    const Kernel *kernel = (const Kernel *)function;
    Launch launch = {kernel, config->blocks, config->threads, config->memory, {}};
    for (unsigned i = 0; i < kernel->arguments; i++) {
        uint64_t word;
        memcpy(&word, arguments[i], 8);
        launch.arguments.push_back(word);
    }
    return add(config->stream, {Operation::LAUNCH, std::move(launch), nullptr, nullptr, {}, 0, 0});
}

API cuStreamBeginCapture_v2(void *stream, int) { return ((Stream *)stream)->recording = new Graph, OK; }
API cuStreamEndCapture(void *stream, void **graph) { return *graph = std::exchange(((Stream *)stream)->recording, nullptr), OK; }
API cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) { return *executable = new Graph(*(Graph *)graph), OK; }
API cuGraphDestroy(void *graph) { return delete (Graph *)graph, OK; }
API cuGraphExecDestroy(void *graph) { return delete (Graph *)graph, OK; }

API cuGraphLaunch(void *graph, void *stream) {
    LOCK;
    if (idle()) return OK;
    for (const Operation &o : ((Graph *)graph)->operations)
        if (int failed = add(stream, o)) return failed;
    return OK;
}

struct Words {
    int result;
    const char *name, *text;
};
static const Words RESULTS[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};
static const Words &words_of(int result) {
    for (const Words &w : RESULTS)
        if (w.result == result) return w;
    static const Words other = {-1, "CUDA_ERROR_UNKNOWN", "unknown error"};
    return other;
}
API cuGetErrorName(int result, const char **text) { return *text = words_of(result).name, OK; }
API cuGetErrorString(int result, const char **text) { return *text = words_of(result).text, OK; }
