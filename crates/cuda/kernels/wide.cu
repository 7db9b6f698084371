// Matrices times many rows: the wide kernel. It follows linear.cu, whose tiles and sums it shares, and is there on Hopper only.
//
// A block of threads takes 128 outputs times 128 rows. Two warpgroups multiply, 64 outputs each: weights become bf16 in registers, as in the
// narrow kernel, and x lies in shared memory as `prepare_wide` stored it. A third brings both there by bulk copies, in two rings: stages of
// x hold 64 inputs, stages of weights a superblock of eight tiles and the sums of x that belong to it. Blocks stay, and take tile after
// tile, so that the copies for the next one run while the last is finished.
//
// Slices are done one after another, their total waits in shared memory: the order of every sum is that of the narrow kernel. Warpgroups
// take turns at the tensor cores: while one's instructions run, the other adds what came of its own to its sums.
//
// Share of the peak to expect: a group of 64 inputs is 4 instructions of 64 cycles for each warpgroup, so 512 cycles, beside which each
// scheduler has about 400 instructions to issue, two thirds of them the fma of scales and sums.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace wide {

using namespace hopper;

constexpr int ROWS = 128, OUTPUTS = 128, TILES = OUTPUTS / TILE, THREADS = 384;
constexpr int STEP_BYTES = ROWS * 32, X_STEPS = 4, X_BYTES = X_STEPS * STEP_BYTES;
constexpr int SUM_BYTES = KIND == 0 ? GROUPS * ROWS * 4 : 0;
constexpr int W_BYTES = TILES * SUPER_BYTES + SUM_BYTES, W_STAGES = 2;
constexpr int TOTAL_BYTES = FLOATS ? 0 : OUTPUTS * ROWS * 4;
constexpr int BARRIER_BYTES = 256, LIMIT = 232448;  // of shared memory: all that a block can have
constexpr int ROOM = (LIMIT - BARRIER_BYTES - TOTAL_BYTES - W_STAGES * W_BYTES) / X_BYTES;
constexpr int X_STAGES = ROOM < 8 ? ROOM : 8;
static_assert(X_STAGES >= 4, "the copies of a superblock must not wait for the one after it");
// Row blocks that are done side by side: about as many outputs' weights as rows of x pass through the second-level cache at a time.
constexpr u32 BESIDE = 8;
// Steps that are issued together, in parts of a superblock. An even number of parts, so that operands alternate between two places.
constexpr int PART = FLOATS || STEPS > 4 ? 4 : STEPS, PARTS = 16 / PART;

// 128 rows of 16 inputs: core matrices of 8 rows x 16 bytes, no swizzle; the two halves of the inputs 128 bytes apart, groups of rows 256.
__device__ __forceinline__ u64 describe(u32 address) { return (u64)(256 >> 4) << 32 | (u64)(128 >> 4) << 16 | (address & 0x3ffff) >> 4; }

// A place in a ring, and the parity of its barrier's phase.
struct Place {
    u32 stage, parity;
    __device__ __forceinline__ void step(u32 stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// Where things lie in shared memory.
struct Shared {
    char *base;
    __device__ __forceinline__ char *x(u32 stage) const { return base + stage * X_BYTES; }
    __device__ __forceinline__ char *w(u32 stage) const { return base + X_STAGES * X_BYTES + stage * W_BYTES; }
    __device__ __forceinline__ float4 *total() const { return (float4 *)(base + X_STAGES * X_BYTES + W_STAGES * W_BYTES); }
    __device__ __forceinline__ u32 barrier(u32 i) const { return shared_address(base + X_STAGES * X_BYTES + W_STAGES * W_BYTES + TOTAL_BYTES) + 8 * i; }
    // Full: copies have come. Empty: all eight warps are done with it.
    __device__ __forceinline__ u32 x_full(u32 stage) const { return barrier(stage); }
    __device__ __forceinline__ u32 x_empty(u32 stage) const { return barrier(X_STAGES + stage); }
    __device__ __forceinline__ u32 w_full(u32 stage) const { return barrier(2 * X_STAGES + stage); }
    __device__ __forceinline__ u32 w_empty(u32 stage) const { return barrier(2 * X_STAGES + W_STAGES + stage); }
};

// The operands of a launch, and how its tiles are counted.
struct Task {
    const char *w0, *w1, *w2;
    float *y0, *y1, *y2;
    u32 o0, o1, o2, rows;
    __device__ __forceinline__ u32 columns(u32 outputs) const { return (outputs + OUTPUTS - 1) / OUTPUTS; }
    __device__ __forceinline__ u32 row_blocks() const { return (rows + ROWS - 1) / ROWS; }
    __device__ __forceinline__ u32 all_columns() const { return columns(o0) + columns(o1) + columns(o2); }
    __device__ __forceinline__ u32 tiles() const { return all_columns() * row_blocks(); }
};

// One tile: 128 outputs of one of the matrices, from output `first` on, times a block of 128 rows.
struct Tile {
    const char *w;
    float *y;
    u32 first, outputs, block;
    __device__ __forceinline__ Tile(const Task &task, u32 t) {
        const u32 all = task.all_columns(), from = t / (BESIDE * all) * BESIDE, left = task.row_blocks() - from, width = left < BESIDE ? left : BESIDE;
        const u32 within = t - from * all, c0 = task.columns(task.o0), c1 = c0 + task.columns(task.o1);
        u32 column = within / width;
        block = from + within % width;
        const int which = column < c0 ? 0 : column < c1 ? 1 : 2;
        column -= which == 0 ? 0 : which == 1 ? c0 : c1;
        w = which == 0 ? task.w0 : which == 1 ? task.w1 : task.w2;
        y = which == 0 ? task.y0 : which == 1 ? task.y1 : task.y2;
        outputs = which == 0 ? task.o0 : which == 1 ? task.o1 : task.o2;
        first = column * OUTPUTS;
    }
};

// One thread: everything from global to shared memory.
__device__ __forceinline__ void bring(const Shared &shared, const Task &task, const char *x, const float *sums, u32 supers) {
    Place in_x = {0, 1}, in_w = {0, 1};  // a new barrier passes for the parity before its first
    const u32 tiles = task.tiles();
    for (u32 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile tile(task, t);
        const u32 left = (tile.outputs - tile.first + TILE - 1) / TILE, count = left < TILES ? left : TILES;
        const char *from_w = tile.w + (u64)(tile.first / TILE) * supers * SUPER_BYTES, *from_x = x + (u64)tile.block * supers * SUPER * ROWS * 2;
        const float *from_sums = sums_of(sums + (u64)tile.block * supers * 14 * ROWS, supers, ROWS / 8);
        for (u32 i = 0; i < supers; i++) {
            const u32 full = shared.w_full(in_w.stage), to = shared_address(shared.w(in_w.stage));
            wait(shared.w_empty(in_w.stage), in_w.parity);
            expect(full, count * SUPER_BYTES + SUM_BYTES);
            for (u32 k = 0; k < count; k++) copy(to + k * SUPER_BYTES, from_w + ((u64)k * supers + i) * SUPER_BYTES, SUPER_BYTES, full);
            if (KIND == 0) copy(to + TILES * SUPER_BYTES, from_sums + (u64)i * GROUPS * ROWS, SUM_BYTES, full);
            in_w.step(W_STAGES);
            for (u32 q = 0; q < SUPER / 16 / X_STEPS; q++) {
                wait(shared.x_empty(in_x.stage), in_x.parity);
                expect(shared.x_full(in_x.stage), X_BYTES);
                copy(shared_address(shared.x(in_x.stage)), from_x, X_BYTES, shared.x_full(in_x.stage));
                from_x += X_BYTES;
                in_x.step(X_STAGES);
            }
        }
    }
}

// `load` of linear.cu in pieces: what steps from `step` on need, as far as it did not come with steps before.
__device__ __forceinline__ void fetch(Super &s, const char *p, int step, int lane) {
    p += lane * 16;
    if (FLOATS) {
#pragma unroll
        for (int k = 0; k < PART; k++) s.floats[FLOATS ? step + k : 0] = *(const uint4 *)(p + (step + k) * 512);
        return;
    }
    if (step % 4 == 0) {
#pragma unroll
        for (int plane = 0; plane < P4; plane++) s.p4[plane][step / 4] = *(const uint4 *)(p + plane * 2048 + step / 4 * 512);
    }
    if (P2 && step % 8 == 0) s.p2[step / 8] = *(const uint4 *)(p + P4 * 2048 + step / 8 * 512);
    if (P1 && step == 0) s.p1 = *(const uint4 *)(p + P4 * 2048 + P2 * 1024);
}

__device__ __forceinline__ void fetch_scales(Super &s, const char *p, int group, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 *own = (const u32 *)(p + CODE_BYTES + (lane / 4 + 8 * half) * ROW_SCALES);
#pragma unroll
        for (int i = group * PAIR_BYTES / 4; i <= ((group + 1) * PAIR_BYTES - 1) / 4; i++) s.scales[half][i] = own[i];
    }
}

// The operands of a part, from the place `p` of its superblock.
__device__ __forceinline__ void decode(u32 (&a)[PART][4], Super &s, const char *p, int part, int lane) {
    fetch(s, p, part * PART, lane);
#pragma unroll
    for (int k = 0; k < PART; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) a[k][j] = operand(s, part * PART + k, j);
}

// What came of a group, into the sums of the slice.
__device__ __forceinline__ void fold(float (&acc)[64], const float (&d)[64], const Super &s, const float2 *sums, int group) {
    const float scale[2] = {scale_of(s, 0, group), scale_of(s, 1, group)};
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = fmaf(scale[i % 4 / 2], d[i], acc[i]);
    if (KIND != 0) return;
    const float offset[2] = {fmaf(-OFFSET, scale[0], bias_of(s, 0, group)), fmaf(-OFFSET, scale[1], bias_of(s, 1, group))};
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 sum = sums[(group * 16 + n) * 4];
#pragma unroll
        for (int e = 0; e < 4; e++) acc[4 * n + e] = fmaf(offset[e / 2], e % 2 ? sum.y : sum.x, acc[4 * n + e]);
    }
}

// The results of a warp: a tile of 16 outputs.
__device__ __forceinline__ void put(const float (&v)[64], const Tile &tile, u32 rows, u32 warp, int lane) {
    const u32 output = tile.first + warp * TILE + lane / 4, row = tile.block * ROWS + lane % 4 * 2;
    float *to = tile.y + (u64)row * tile.outputs + output;
    const u64 width = tile.outputs;
#pragma unroll
    for (int n = 0; n < 16; n++, to += 8 * width) {
        const bool here = row + 8 * n < rows, below = row + 8 * n + 1 < rows;
        if (here && output < tile.outputs) to[0] = v[4 * n];
        if (below && output < tile.outputs) to[width] = v[4 * n + 1];
        if (here && output + 8 < tile.outputs) to[8] = v[4 * n + 2];
        if (below && output + 8 < tile.outputs) to[width + 8] = v[4 * n + 3];
    }
}

// A warpgroup's share: 64 outputs of every tile of this block.
__device__ __forceinline__ void work(const Shared &shared, const Task &task, u32 supers) {
    const u32 warp = threadIdx.x / 32, own = warp / 4;
    const int lane = threadIdx.x % 32;
    const u32 tiles = task.tiles();
    u32 left = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x * supers;  // superblocks to come
    Place in_x = {0, 0}, in_w = {0, 0};
    float acc[64] = {}, d[64] = {};  // d: what came of a group; of bf16 values, which have none, the total
    u32 a[2][PART][4];
    Super s;
    float4 *total = shared.total() + threadIdx.x;
    if (own == 1) give_turn(0);
    wait(shared.w_full(0), 0);
    decode(a[0], s, shared.w(0) + warp * SUPER_BYTES, 0, lane);
    for (u32 t = blockIdx.x; t < tiles; t += gridDim.x) {
        u32 slice = 0, end = 0;
        bool fresh = true;
        for (u32 i = 0; i < supers; i++) {
            while (end <= i) end = supers * ++slice / SLICES;
            const char *p = shared.w(in_w.stage) + warp * SUPER_BYTES;
            const float2 *sums = (const float2 *)(shared.w(in_w.stage) + TILES * SUPER_BYTES) + lane % 4;
            Place next = in_w;
            next.step(W_STAGES);
            const bool more = --left != 0;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int step = part * PART;
                u32(&now)[PART][4] = a[part % 2], (&then)[PART][4] = a[(part + 1) % 2];
                if (step % X_STEPS == 0) wait(shared.x_full(in_x.stage), in_x.parity);
                const u64 x = describe(shared_address(shared.x(in_x.stage)));
                take_turn(own);
                pin(FLOATS ? acc : d);
                pin(now);
                begin();
#pragma unroll
                for (int k = 0; k < PART; k++)
                    multiply(FLOATS ? acc : d, now[k], x + (step % X_STEPS + k) * (STEP_BYTES >> 4), FLOATS || (step + k) % STEPS != 0);
                commit();
                // Nobody waits for a turn after the last.
                if (own == 0 || part + 1 < PARTS || more) give_turn(1 - own);
                // While that runs: the next operands. After the last superblock they are of no use to anyone.
                if (part + 1 == PARTS && more) wait(shared.w_full(next.stage), next.parity);
                decode(then, s, part + 1 < PARTS ? p : shared.w(next.stage) + warp * SUPER_BYTES, (part + 1) % PARTS, lane);
                const bool whole = !FLOATS && (step + PART) % STEPS == 0;
                const int group = (step + PART - 1) / STEPS;
                if (whole) fetch_scales(s, p, group, lane);
                finish();
                pin(FLOATS ? acc : d);
                pin(now);
                if ((step + PART) % X_STEPS == 0) {
                    if (lane == 0) arrive(shared.x_empty(in_x.stage));
                    in_x.step(X_STAGES);
                }
                if (whole) fold(acc, d, s, sums, group);
            }
            __syncwarp();
            if (lane == 0) arrive(shared.w_empty(in_w.stage));
            in_w = next;
            if (i + 1 != end) continue;
            if (!fresh) {
#pragma unroll
                for (int n = 0; n < 16; n++) {
                    const float4 sum = FLOATS ? make_float4(d[4 * n], d[4 * n + 1], d[4 * n + 2], d[4 * n + 3]) : total[n * 256];
                    acc[4 * n] = sum.x + acc[4 * n], acc[4 * n + 1] = sum.y + acc[4 * n + 1];
                    acc[4 * n + 2] = sum.z + acc[4 * n + 2], acc[4 * n + 3] = sum.w + acc[4 * n + 3];
                }
            } else {
#pragma unroll
                for (int k = 0; k < 64; k++) acc[k] = 0.f + acc[k];
            }
            if (end == supers) put(acc, Tile(task, t), task.rows, warp, lane);
#pragma unroll
            for (int n = 0; n < 16; n++) {
                const float4 sum = make_float4(acc[4 * n], acc[4 * n + 1], acc[4 * n + 2], acc[4 * n + 3]);
                if (FLOATS) {
                    d[4 * n] = sum.x, d[4 * n + 1] = sum.y, d[4 * n + 2] = sum.z, d[4 * n + 3] = sum.w;
                } else {
                    total[n * 256] = sum;
                }
                acc[4 * n] = acc[4 * n + 1] = acc[4 * n + 2] = acc[4 * n + 3] = 0.f;
            }
            fresh = false;
        }
    }
}

}  // namespace wide

// Up to three matrices of one format times the same rows, which `prepare_wide` stored.
EXPORT __launch_bounds__(wide::THREADS, 1)
wide_128(const char *w0, const char *w1, const char *w2, float *y0, float *y1, float *y2, u32 o0, u32 o1, u32 o2, const char *x, const float *sums, u32 supers, u32 rows) {
    wait_for_others();
    SHARED_AT_LAUNCH(char, wide_shared);
    const wide::Shared shared = {wide_shared};
    const wide::Task task = {w0, w1, w2, y0, y1, y2, o0, o1, o2, rows};
    if (blockIdx.x >= task.tiles()) return;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < wide::X_STAGES; i++) wide::barrier_init(shared.x_full(i), 1), wide::barrier_init(shared.x_empty(i), 8);
        for (u32 i = 0; i < wide::W_STAGES; i++) wide::barrier_init(shared.w_full(i), 1), wide::barrier_init(shared.w_empty(i), 8);
        wide::barriers_made();
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        wide::few_registers();
        if (threadIdx.x == 256) wide::bring(shared, task, x, sums, supers);
    } else {
        wide::many_registers();
        wide::work(shared, task, supers);
    }
}
#endif
