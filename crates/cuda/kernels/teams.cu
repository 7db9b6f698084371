// The product of up to eight rows by teams of eight warps, all of x near (compute capability 9.0 and more); linear.cu has the layout and the order
// of a sum, which are the same, and so are the bits.
//
// One block of threads stays on each processor. A team takes one tile after another, each of its warps a slice of it, in turn another one, as
// slices may differ by a superblock. Weights come by bulk copies, which each warp asks for in time for itself: `stages` superblocks are on their
// way while it multiplies, across the ends of its tiles. Sums of slices are left in one of `1 << slots` places; one of the warps adds them once
// it is done with the tile after, so that warps seldom wait for each other. Where x is too large, split.cu is taken.

#if __CUDA_ARCH__ >= 900
namespace teams {

constexpr u32 THREADS = 768;  // at most: three teams

// The superblocks of a warp, one after the other.
struct Walk {
    u32 at, nth, left;  // its tile; superblocks of the slice still to come
    const char *w;        // the next, null behind the last
};

}  // namespace teams

// Up to three matrices of one format times the same rows: block x has a share of all tiles, a team at a time each.
EXPORT __launch_bounds__(teams::THREADS, 1)
teams_8(const char *w0, const char *w1, const char *w2, float *y0, float *y1, float *y2, u32 o0, u32 o1, u32 o2, const uint4 *x, const float *sums, u32 supers, u32 rows,
        u32 stages, u32 slots, u32 tiles) {
    using namespace teams;
    constexpr u32 SUMS = KIND == 0 ? GROUPS * 8 : 0, SLOT = SLICES * 128;
    const split::Matrices m = {w0, w1, w2, y0, y1, y2, o0, o1, o2};
    const u32 places = rows * 4, near = 8 * places, warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), own = warp % SLICES, team = warp / SLICES;
    SHARED_AT_LAUNCH(char, memory);
    // Weights, [warp][stage]; x and its sums; sums of slices, [team][slot][slice][lane] of 16 bytes; barriers of weights, and of slots: filled, free.
    uint4 *near_x = (uint4 *)(memory + warps * stages * SUPER_BYTES);
    float *near_sums = (float *)(near_x + supers * near), *partial = near_sums + supers * SUMS;
    u64 *full = (u64 *)(partial + (warps / SLICES << slots) * SLOT), *filled = full + warps * stages + (team * 2 << slots), *free = filled + (1 << slots);
    partial += (team << slots) * SLOT;
    full += warp * stages;
    char *ring = memory + warp * stages * SUPER_BYTES;
    if (lane == 0) {
        for (u32 i = 0; i < stages; i++) cluster::barrier(full + i, 1);
        for (u32 i = 0; own == 0 && i < 1 << slots; i++) cluster::barrier(filled + i, SLICES), cluster::barrier(free + i, 1);
    }
    cluster::barriers_made();
    __syncwarp();
    const u32 first = team * gridDim.x + blockIdx.x, step = gridDim.x * (warps / SLICES);
    auto from_of = [&](u32 nth) { return supers * ((own + nth) % SLICES) / SLICES; };
    auto to_of = [&](u32 nth) { return supers * ((own + nth) % SLICES + 1) / SLICES; };
    Walk next = {first, 0, 0, nullptr};
    // Goes on to a slice that has superblocks.
    auto settle = [&] {
        for (; next.at < tiles; next.at += step, next.nth++) {
            const u32 from = from_of(next.nth), to = to_of(next.nth);
            if (from == to) continue;
            const split::Place p = split::place(m, next.at);
            next.left = to - from, next.w = p.w + ((u64)p.tile * supers + from) * SUPER_BYTES;
            return;
        }
        next.w = nullptr;
    };
    auto ask = [&](u32 stage) {
        if (!next.w) return;
        if (lane == 0) cluster::expect(full + stage, SUPER_BYTES), cluster::fetch(ring + stage * SUPER_BYTES, next.w, SUPER_BYTES, full + stage);
        next.w += SUPER_BYTES;
        if (--next.left == 0) next.at += step, next.nth++, settle();
    };
    settle();
    // Weights depend on nothing: the first come while others finish what this reads.
    for (u32 i = 0; i < stages; i++) ask(i);
    wait_for_others();
    for (u32 i = threadIdx.x; i < supers * near; i += blockDim.x) cluster::copy(near_x + i, x + (u64)(i / places) * 32 + i % places, true);
    if (KIND == 0) {
        const float *far_sums = sums_of(sums, supers, 1);
        for (u32 i = threadIdx.x; i < supers * SUMS / 4; i += blockDim.x) cluster::copy(near_sums + 4 * i, far_sums + 4 * i, true);
    }
    cluster::copied();
    __syncthreads();
    // What a tile's slices left, in their order.
    auto finish = [&](u32 tile, u32 nth) {
        const u32 slot = nth & ((1 << slots) - 1);
        cluster::arrived(filled + slot, nth >> slots & 1);
        const float4 *left = (const float4 *)(partial + slot * SLOT) + lane;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (u32 k = 0; k < SLICES; k++) {
            const float4 part = left[k * 32];
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        __syncwarp();
        if (lane == 0) cluster::arrive(free + slot);
        const split::Place out = split::place(m, tile);
        const u32 row = lane % 4 * 2, output = out.tile * TILE + lane / 4;
        float *y = out.y + (u64)row * out.outputs + output;
        const bool low = output < out.outputs, high = output + 8 < out.outputs;
        if (row < rows && low) y[0] = sum.x;
        if (row < rows && high) y[8] = sum.z;
        if (row + 1 < rows && low) y[out.outputs] = sum.y;
        if (row + 1 < rows && high) y[out.outputs + 8] = sum.w;
    };
    // Lanes of a row that is not there read another's: no column of a product knows of the others, and theirs goes nowhere.
    const uint4 *own_x = near_x + min(lane / 4, rows - 1) * 4 + lane % 4;
    u32 stage = 0, parity = 0, nth = 0;
    for (u32 tile = first; tile < tiles; tile += step, nth++) {
        float acc[1][4] = {};
        const u32 from = from_of(nth), to = to_of(nth), slot = nth & ((1 << slots) - 1);
        for (u32 i = from; i < to; i++) {
            Super s;
            cluster::arrived(full + stage, parity);
            load<true>(s, ring + stage * SUPER_BYTES, lane);
            __syncwarp();
            ask(stage);
            if (++stage == stages) stage = 0, parity ^= 1;
            multiply<1, true>(s, own_x + i * near, (const float2 *)(near_sums + i * SUMS) + lane % 4, acc, places);
        }
        if (nth >> slots) cluster::arrived(free + slot, (nth >> slots) + 1 & 1);
        ((float4 *)(partial + slot * SLOT))[(own + nth) % SLICES * 32 + lane] = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
        __syncwarp();
        if (lane == 0) cluster::arrive(filled + slot);
        if (nth && (nth - 1) % SLICES == own) finish(tile - step, nth - 1);
    }
    if (nth && (nth - 1) % SLICES == own) finish(first + (nth - 1) * step, nth - 1);
}
#endif
