// The product of up to eight rows with its slices spread over a cluster of blocks (compute capability 9.0 and more); linear.cu has the layout and the
// order of a sum, which are the same, and so are the bits.
//
// In the narrow kernel a block of threads takes a tile, and each of its warps a slice: every block reads all of x, which for eight rows is more
// than its weights are, a few bytes at a time, each of which somebody waits for. Here a block takes one slice of eight tiles, a tile a warp. It
// needs an eighth of x, and copies it to shared memory at once. The eight blocks of a cluster have the eight slices of the same tiles; block r
// gets what the others have of tile r sent to its memory, and adds it in order.

#if __CUDA_ARCH__ >= 900
namespace split {

constexpr u32 TILES = 8, THREADS = TILES * 32;  // of a cluster, which are the warps of a block
constexpr u32 NEAR = 256, NEAR_SUMS = 64;       // places of 16 bytes that x of a superblock takes, and numbers that its sums take at most

struct Matrices { const char *w0, *w1, *w2; float *y0, *y1, *y2; u32 o0, o1, o2; };

// A tile, counted over all matrices. `w` is null beyond the last.
struct Place { const char *w; float *y; u32 tile, outputs; };
__device__ __forceinline__ Place place(const Matrices &m, u32 all) {
    const u32 t0 = (m.o0 + TILE - 1) / TILE, t1 = t0 + (m.o1 + TILE - 1) / TILE, t2 = t1 + (m.o2 + TILE - 1) / TILE;
    if (all < t0) return {m.w0, m.y0, all, m.o0};
    if (all < t1) return {m.w1, m.y1, all - t0, m.o1};
    if (all < t2) return {m.w2, m.y2, all - t1, m.o2};
    return {nullptr, nullptr, 0, 0};
}

}  // namespace split

// Up to three matrices of one format times the same rows: block x is a slice of eight tiles, counted over all. x of `chunk` superblocks is near at a time.
EXPORT CLUSTER(8) __launch_bounds__(split::THREADS, FLOATS ? 2 : 4)
split_8(const char *w0, const char *w1, const char *w2, float *y0, float *y1, float *y2, u32 o0, u32 o1, u32 o2, const uint4 *x, const float *sums, u32 supers, u32 rows, u32 chunk) {
    using namespace split;
    SHARED_AT_LAUNCH(uint4, split_memory);
    // x of a chunk and its sums; what is sent here, [slice][lane] of 16 bytes; the mailbox.
    uint4 *near_x = split_memory;
    float *near_sums = (float *)(near_x + chunk * NEAR), *partial = near_sums + chunk * NEAR_SUMS;
    u64 *barrier = (u64 *)(partial + SLICES * 128);
    if (threadIdx.x == 0) cluster::mailbox(barrier, SLICES * 512);
    cluster::begun();
    const Matrices m = {w0, w1, w2, y0, y1, y2, o0, o1, o2};
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = blockIdx.x % SLICES, first = blockIdx.x / SLICES * TILES;
    const u32 from = supers * slice / SLICES, to = supers * (slice + 1) / SLICES;
    const Place own = place(m, first + warp);
    const char *w = own.w + ((u64)own.tile * supers + from) * SUPER_BYTES;
    Super s;
    // Weights depend on nothing: the first come while others finish what this reads.
    if (own.w && from < to) load(s, w, lane);
    wait_for_others();
    sums = sums_of(sums, supers, 1);
    float acc[1][4] = {};
    for (u32 begin = from; begin < to; begin += chunk) {
        const u32 count = min(chunk, to - begin);
        if (begin != from) __syncthreads();  // everyone is done with the chunk before
        const uint4 *far_x = x + (u64)begin * NEAR;
        for (u32 i = threadIdx.x; i < count * NEAR; i += THREADS) cluster::copy(near_x + i, far_x + i, i % 32 / 4 < rows);
        if (KIND == 0) {
            const float *far_sums = sums + (u64)begin * GROUPS * 8;
            for (u32 i = threadIdx.x; i < count * GROUPS * 2; i += THREADS) cluster::copy(near_sums + 4 * i, far_sums + 4 * i, true);
        }
        cluster::copied();
        __syncthreads();
        if (!own.w) continue;
        for (u32 i = 0; i < count; i++, w += SUPER_BYTES) {
            if (begin + i + 1 < to) prefetch_super(w + SUPER_BYTES, lane);
            if (begin + i != from) load(s, w, lane);
            multiply<1, true>(s, near_x + i * NEAR + lane, (const float2 *)(near_sums + i * GROUPS * 8) + lane % 4, acc);
        }
    }
    cluster::all_begun();
    cluster::send(warp, partial + (slice * 32 + lane) * 4, acc[0], barrier);
    const Place out = place(m, first + slice);
    cluster::received(barrier);
    if (threadIdx.x >= 128) return;
    float sum = 0.f;
#pragma unroll
    for (u32 k = 0; k < SLICES; k++) sum += partial[k * 128 + threadIdx.x];
    const u32 i = threadIdx.x % 4, l = threadIdx.x / 4, row = l % 4 * 2 + i % 2, output = out.tile * TILE + l / 4 + i / 2 * 8;
    if (row < rows && output < out.outputs) out.y[(u64)row * out.outputs + output] = sum;
}
#endif
