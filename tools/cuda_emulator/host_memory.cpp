// What becomes of host memory that is written before the stream was waited for, and of a copy that leaves its allocation. Run by
// crates/cuda/tests/emulated.rs.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

template <class F> static F *find(const char *name, F *) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "%s is missing\n", name), exit(1);
    return (F *)found;
}
#define CALL(name, type) find(name, (int (*) type) nullptr)

int main() {
    library = dlopen("libcuda.so", RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    auto allocate = CALL("cuMemAlloc_v2", (uint64_t *, size_t));
    auto allocate_host = CALL("cuMemHostAlloc", (void **, size_t, unsigned));
    auto to_device = CALL("cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *));
    auto to_host = CALL("cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *));
    auto synchronize = CALL("cuStreamSynchronize", (void *));
    auto create = CALL("cuStreamCreate", (void **, unsigned));

    void *stream, *pinned;
    uint64_t device;
    if (create(&stream, 1) || allocate(&device, 512) || allocate_host(&pinned, 512, 0)) return 1;
    char own[512], back[512];

    // Copies 7 to the device and back, with 9 written to the source in between or not.
    auto through = [&](char *source, bool early) {
        memset(source, 7, 512);
        to_device(device, source, 512, stream);
        if (!early) synchronize(stream);
        memset(source, 9, 512);
        to_host(back, device, 512, stream);
        synchronize(stream);
        return back[511];
    };
    printf("pinned, waited for: %d\n", through((char *)pinned, false));
    printf("pinned, overwritten: %d\n", through((char *)pinned, true));
    printf("not pinned, overwritten: %d\n", through(own, true));
    memset(back, 0, 512);
    to_host(back, device, 512, stream);
    const int before = back[511];
    synchronize(stream);
    printf("read before the wait: %d, after: %d\n", before, back[511]);
    printf("outside: %d\n", to_device(device + 512, own, 512, stream));
}
