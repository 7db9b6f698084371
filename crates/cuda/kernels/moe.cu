// Mixture of experts: which experts a row goes to, and the sum of what they gave.

// Larger floats have larger keys; equal ones the one with the lower index.
__device__ __forceinline__ u64 rank_key(float v, u32 index) {
    const u32 bits = __float_as_uint(v), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (0xffffffffu - index);
}

// One warp a row of `router` [rows, experts]: the `top_k` best experts and their factors, [rows, top_k] each. A softmax over the chosen
// ones, summed in order of rank, times each expert's own scale; NaN when any logit of the row is not finite.
EXPORT route(const float *router, const float *scales, u32 *chosen, float *factors, u32 experts, u32 top_k) {
    after_others();
    SHARED_AT_LAUNCH(u64, keys);
    const u32 lane = threadIdx.x;
    const float *row = router + (u64)blockIdx.x * experts;
    float poison = 0.f;
    for (u32 e = lane; e < experts; e += 32) keys[e] = rank_key(row[e], e), poison = fmaf(row[e], 0.f, poison);
    poison = warp_sum(poison);
    __syncwarp();
    float first = 0.f, sum = 0.f, mine = 0.f;
    u32 own = 0;
    for (u32 rank = 0; rank < top_k; rank++) {
        u64 best = 0;
        for (u32 e = lane; e < experts; e += 32) best = keys[e] > best ? keys[e] : best;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const u64 other = __shfl_xor_sync(~0u, best, step);
            best = other > best ? other : best;
        }
        const u32 expert = 0xffffffffu - (u32)best;
        if (expert % 32 == lane) keys[expert] = 0;
        __syncwarp();
        const float v = row[expert];
        if (rank == 0) first = v;
        const float share = expf(v - first);
        sum += share;
        if (rank % 32 == lane) mine = share, own = expert;
        // Ranks beyond a warp's lanes are written as they come; their shares follow below.
        if (lane == 0) chosen[(u64)blockIdx.x * top_k + rank] = expert, factors[(u64)blockIdx.x * top_k + rank] = share;
    }
    __syncwarp();
    for (u32 rank = lane; rank < top_k; rank += 32) {
        const u64 at = (u64)blockIdx.x * top_k + rank;
        const bool held = top_k <= 32;
        const float share = held ? mine : factors[at];
        const u32 expert = held ? own : chosen[at];
        factors[at] = fmaf(share / sum, scales[expert], poison);
    }
}

// out[row] = sum over the ranks in order of factor * y[row, rank]; y is [rows * top_k, width].
EXPORT combine(const float *y, const float *factors, float *out, u32 width, u32 top_k, u64 n) {
    after_others();
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const u64 row = i / width;
    float sum = 0.f;
    for (u32 rank = 0; rank < top_k; rank++) sum = fmaf(factors[row * top_k + rank], y[(row * top_k + rank) * width + i % width], sum);
    out[i] = sum;
}
