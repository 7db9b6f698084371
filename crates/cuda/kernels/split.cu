// The product of up to eight rows, too long for all of x to be near (teams.cu), with its slices spread over a cluster of blocks (compute capability 9.0 and more); linear.cu has the layout and the
// order of a sum, which are the same, and so are the bits.
//
// In the narrow kernel a block of threads takes a tile, and each of its warps a slice: every block reads all of x, which for eight rows is more
// than its weights are, a few bytes at a time, each of which somebody waits for. Here a block has one slice of eight tiles at a time, a tile a
// warp, so that it needs an eighth of x, which it copies to shared memory once. The eight blocks of a cluster have the eight slices of the same
// tiles; block r gets what the others have of tile r sent to its memory, and adds it in order.
//
// As many clusters are launched as find a place, and each goes from one group of eight tiles to the next. Weights come by bulk copies, which
// each warp asks for in time for itself: `stages` superblocks are on their way while it multiplies, across the ends of its tiles. What was
// sent is added a group later, so that nobody waits for the slowest of a cluster.

#if __CUDA_ARCH__ >= 900
namespace split {

constexpr u32 TILES = 8, THREADS = TILES * 32;  // of a cluster, which are the warps of a block

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

// The superblocks of a warp's slice of its tiles, one after the other.
struct Walk {
    u32 group, left;  // superblocks of the tile still to come
    const char *w;    // the next, null behind the last
};

}  // namespace split

// Up to three matrices of one format times the same rows: block x is a slice of the tiles of its cluster. x of `chunk` superblocks is near at a time.
EXPORT CLUSTER(8) __launch_bounds__(split::THREADS, FLOATS ? 2 : 3)
split_8(const char *w0, const char *w1, const char *w2, float *y0, float *y1, float *y2, u32 o0, u32 o1, u32 o2, const uint4 *x, const float *sums, u32 supers, u32 rows,
        u32 chunk, u32 stages, u32 groups) {
    using namespace split;
    constexpr u32 SENT = SLICES * 128, SUMS = KIND == 0 ? GROUPS * 8 : 0;  // numbers a group; of a superblock
    const Matrices m = {w0, w1, w2, y0, y1, y2, o0, o1, o2};
    const u32 places = rows * 4, near = 8 * places;
    SHARED_AT_LAUNCH(char, memory);
    // Weights, [warp][stage]; x of a chunk and its sums; what is sent here, twice [slice][lane] of 16 bytes; barriers of both, and of weights.
    uint4 *near_x = (uint4 *)(memory + TILES * stages * SUPER_BYTES);
    float *near_sums = (float *)(near_x + chunk * near), *sent = near_sums + chunk * SUMS;
    u64 *boxes = (u64 *)(sent + 2 * SENT);
    const u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), slice = blockIdx.x % SLICES, first = blockIdx.x / SLICES, step = gridDim.x / SLICES;
    const u32 from = supers * slice / SLICES, to = supers * (slice + 1) / SLICES;
    char *ring = memory + warp * stages * SUPER_BYTES;
    u64 *full = boxes + 2 + warp * stages;
    if (threadIdx.x == 0)
        for (u32 i = 0; i < 2; i++) cluster::barrier(boxes + i, 1), cluster::expect(boxes + i, SENT * 4);
    if (lane == 0)
        for (u32 i = 0; i < stages; i++) cluster::barrier(full + i, 1);
    cluster::barriers_made();
    __syncwarp();
    cluster::begun();
    auto tile_at = [&](u32 group) {
        const Place p = place(m, group * TILES + warp);
        return group < groups && p.w && from < to ? p.w + ((u64)p.tile * supers + from) * SUPER_BYTES : nullptr;
    };
    Walk next = {first, to - from, tile_at(first)};
    auto ask = [&](u32 stage) {
        if (!next.w) return;
        if (lane == 0) cluster::expect(full + stage, SUPER_BYTES), cluster::fetch(ring + stage * SUPER_BYTES, next.w, SUPER_BYTES, full + stage);
        if (--next.left) next.w += SUPER_BYTES;
        else next.group += step, next.left = to - from, next.w = tile_at(next.group);
    };
    // Weights depend on nothing: the first come while others finish what this reads.
    for (u32 i = 0; i < stages; i++) ask(i);
    wait_for_others();
    sums = sums_of(sums, supers, 1);
    auto bring = [&](u32 begin, u32 count) {
        const uint4 *far_x = x + (u64)begin * 256;
        for (u32 i = threadIdx.x; i < count * near; i += THREADS) cluster::copy(near_x + i, far_x + i / places * 32 + i % places, true);
        if (KIND == 0) {
            const float *far_sums = sums + (u64)begin * SUMS;
            for (u32 i = threadIdx.x; i < count * SUMS / 4; i += THREADS) cluster::copy(near_sums + 4 * i, far_sums + 4 * i, true);
        }
        cluster::copied();
        __syncthreads();
    };
    // What was sent of a group, in the order of slices.
    auto finish = [&](u32 group, u32 nth) {
        u64 *box = boxes + nth % 2;
        cluster::received(box, nth / 2 % 2);
        if (threadIdx.x == 0) cluster::expect(box, SENT * 4);
        const Place out = place(m, group * TILES + slice);
        const float *own = sent + nth % 2 * SENT + threadIdx.x;
        float sum = 0.f;
#pragma unroll
        for (u32 k = 0; k < SLICES; k++) sum += own[k * 128];
        const u32 i = threadIdx.x % 4, l = threadIdx.x / 4, row = l % 4 * 2 + i % 2, output = out.tile * TILE + l / 4 + i / 2 * 8;
        if (row < rows && output < out.outputs) out.y[(u64)row * out.outputs + output] = sum;
    };
    // Lanes of a row that is not there read another's: no column of a product knows of the others, and theirs goes nowhere.
    const uint4 *own_x = near_x + min(lane / 4, rows - 1) * 4 + lane % 4;
    u32 stage = 0, parity = 0, nth = 0;
    for (u32 group = first; group < groups; group += step, nth++) {
        float acc[1][4] = {};
        const bool there = tile_at(group);
        for (u32 begin = from; begin < to; begin += chunk) {
            const u32 count = min(chunk, to - begin);
            if (nth == 0 || to - from > chunk) {
                if (nth || begin != from) __syncthreads();  // everyone is done with the chunk before
                bring(begin, count);
            }
            if (!there) continue;
            for (u32 i = 0; i < count; i++) {
                Super s;
                cluster::arrived(full + stage, parity);
                load<true>(s, ring + stage * SUPER_BYTES, lane);
                __syncwarp();
                ask(stage);
                if (++stage == stages) stage = 0, parity ^= 1;
                multiply<1, true>(s, own_x + i * near, (const float2 *)(near_sums + i * SUMS) + lane % 4, acc, places);
            }
        }
        if (nth == 0) cluster::all_begun();
        else if (threadIdx.x < 128) finish(group - step, nth - 1);
        // Whoever sends has all that was sent for the group before, whose senders were done with the one before that: its place is free.
        __syncthreads();
        cluster::send(warp, sent + nth % 2 * SENT + (slice * 32 + lane) * 4, acc[0], boxes + nth % 2);
    }
    if (threadIdx.x < 128) finish(first + (nth - 1) * step, nth - 1);
}
#endif
