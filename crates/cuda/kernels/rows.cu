// Norms, and what is done to single values. A row's or head's values are summed by as many threads as its width alone decides.

// Sum of squares of `width` values by the whole block: thread i takes four values from 4 i on, then from 4 (i + threads) on and so on, in order;
// lanes by halves; warps by halves. `x` is in shared memory, or aligned where the width is a multiple of four.
__device__ __forceinline__ float block_squares(const float *x, u32 width) {
    __shared__ float warps[32];
    __syncthreads();  // it may have been used before, and what is summed may just have been written
    float sum = 0.f;
    for (u32 i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
        if (width % 4 == 0) {
            const float4 v = *(const float4 *)(x + i);
            sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
        } else {
            for (u32 j = i; j < i + 4 && j < width; j++) sum = fmaf(x[j], x[j], sum);
        }
    }
    sum = warp_sum(sum);
    if (blockDim.x == 32) return sum;
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    return warp_sum(lane < blockDim.x / 32 ? warps[lane] : 0.f);
}

// NaN when the sum overflowed: the row would silently become zeros.
__device__ __forceinline__ float inverse_rms(float squares, int width, float eps) {
    const float mean = squares / (float)width;
    return fmaf(mean, 0.f, 1.f / sqrtf(mean + eps));
}

// A row's or head's norm; `weight` may be null. One block each.
EXPORT rms_norm(const float *x, const float *weight, float *out, u32 width, float eps) {
    after_others();
    x += (u64)blockIdx.x * width;
    out += (u64)blockIdx.x * width;
    const float factor = inverse_rms(block_squares(x, width), width, eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float v = x[i] * factor;
        out[i] = weight ? v * weight[i] : v;
    }
}

// Fours of values of a row that a thread keeps at hand.
constexpr int KEPT = 4;

// x = (x + norm(y, w1)) scale into `row` too, then out = norm(x, w2) into `row` too. Everything is asked for at once, and waits in registers:
// the row is a multiple of four wide and has at most KEPT fours a thread.
__device__ __forceinline__ void norms_kept(float *row, float *x, const float *y, const float *w1, float eps1, float scale, const float *w2, float eps2, float *out, u32 width) {
    const float4 ones = make_float4(1.f, 1.f, 1.f, 1.f);
    float4 xs[KEPT], ys[KEPT], first[KEPT], second[KEPT];
    float4 *own = (float4 *)row + threadIdx.x;
#define EACH_FOUR(j, i) \
    _Pragma("unroll") \
    for (u32 j = 0, i = threadIdx.x; j < KEPT; j++, i += blockDim.x) \
        if (4 * i < width)
    EACH_FOUR(j, i) {
        xs[j] = ((const float4 *)x)[i];
        if (y) ys[j] = ((const float4 *)y)[i], first[j] = ((const float4 *)w1)[i];
        second[j] = w2 ? ((const float4 *)w2)[i] : ones;
    }
    if (y) {
        EACH_FOUR(j, i) own[j * blockDim.x] = ys[j];
        const float factor = inverse_rms(block_squares(row, width), width, eps1);
        EACH_FOUR(j, i) {
            float4 &v = xs[j];
            v.x = (v.x + ys[j].x * factor * first[j].x) * scale, v.y = (v.y + ys[j].y * factor * first[j].y) * scale;
            v.z = (v.z + ys[j].z * factor * first[j].z) * scale, v.w = (v.w + ys[j].w * factor * first[j].w) * scale;
            ((float4 *)x)[i] = v;
        }
    }
    if (!out) return;
    EACH_FOUR(j, i) own[j * blockDim.x] = xs[j];
    const float factor = inverse_rms(block_squares(row, width), width, eps2);
    EACH_FOUR(j, i) {
        float4 v = xs[j];
        v.x = v.x * factor, v.y = v.y * factor, v.z = v.z * factor, v.w = v.w * factor;
        if (w2) v.x *= second[j].x, v.y *= second[j].y, v.z *= second[j].z, v.w *= second[j].w;
        ((float4 *)out)[i] = v;
        own[j * blockDim.x] = v;
    }
#undef EACH_FOUR
}

// The same for any row.
__device__ __forceinline__ void norms_of(float *row, float *x, const float *y, const float *w1, float eps1, float scale, const float *w2, float eps2, float *out, u32 width) {
    const u32 threads = blockDim.x;
    for (u32 i = threadIdx.x; i < width; i += threads) row[i] = y ? y[i] : x[i];
    if (y) {
        const float factor = inverse_rms(block_squares(row, width), width, eps1);
        __syncthreads();
        for (u32 i = threadIdx.x; i < width; i += threads) {
            const float v = (x[i] + row[i] * factor * w1[i]) * scale;
            x[i] = v;
            row[i] = v;
        }
    }
    if (!out) return;
    const float factor = inverse_rms(block_squares(row, width), width, eps2);
    __syncthreads();
    for (u32 i = threadIdx.x; i < width; i += threads) {
        const float v = row[i] * factor, w = w2 ? v * w2[i] : v;
        out[i] = w;
        row[i] = w;
    }
}

// What stands between the matrices of a decoder, in one launch; null pointers leave parts out. One block a row:
// x = (x + norm(y, w1)) scale; out = norm(x, w2); out as the tensor cores read it.
EXPORT norms(float *x, const float *y, const float *w1, float eps1, float scale, const float *w2, float eps2, float *out, uint4 *prepared, float *sums, u32 width, u32 nt) {
    others_may_begin();
    for (u32 i = threadIdx.x * 32; i < width; i += blockDim.x * 32) {
        if (w1) prefetch(w1 + i);
        if (w2) prefetch(w2 + i);
    }
    wait_for_others();
    SHARED_AT_LAUNCH(float4, shared);
    float *row = (float *)shared;
    const u32 r = blockIdx.x, threads = blockDim.x;
    const u64 at = (u64)r * width;
    if (width % 4 == 0 && width <= 4 * KEPT * threads) {
        norms_kept(row, x + at, y ? y + at : y, w1, eps1, scale, w2, eps2, out ? out + at : out, width);
    } else {
        norms_of(row, x + at, y ? y + at : y, w1, eps1, scale, w2, eps2, out ? out + at : out, width);
    }
    if (!prepared) return;
    const u32 supers = (width + 255) / 256;
    for (u32 i = width + threadIdx.x; i < supers * 256; i += threads) row[i] = 0.f;
    __syncthreads();
    for (u32 i = threadIdx.x; i / 32 * 32 < supers * 16; i += threads) {
        const bool active = i < supers * 16;
        const u32 group = i / 4, t = i % 4;
        float v[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const float4 four = active ? *(const float4 *)&row[group * 64 + s * 16 + t * 4] : make_float4(0.f, 0.f, 0.f, 0.f);
            v[s][0] = four.x, v[s][1] = four.y, v[s][2] = four.z, v[s][3] = four.w;
        }
        store_prepared(v, prepared, sums, r, group, supers, nt, t, active);
    }
}

// Rows for the tensor cores: y is a row, x 1,024 inputs of it, four a thread. With `gate`: out = x = activation(x) * y first.
constexpr u32 PREPARERS = 256;
template <bool GATE> __device__ __forceinline__ void prepare_row(float *x, const float *y, u32 kind, uint4 *prepared, float *sums, u32 inputs, u32 nt) {
    __shared__ float4 fours[PREPARERS];
    const u32 row = blockIdx.y, supers = (inputs + 255) / 256, k = (blockIdx.x * PREPARERS + threadIdx.x) * 4;
    x += (u64)row * inputs + k;
    y += (u64)row * inputs + k;
    float four[4] = {};
    if (k + 4 <= inputs && inputs % 4 == 0) {
        const float4 own = *(const float4 *)x, other = GATE ? *(const float4 *)y : own;
        four[0] = own.x, four[1] = own.y, four[2] = own.z, four[3] = own.w;
        if (GATE) {
            four[0] = activate(kind, four[0]) * other.x, four[1] = activate(kind, four[1]) * other.y;
            four[2] = activate(kind, four[2]) * other.z, four[3] = activate(kind, four[3]) * other.w;
            *(float4 *)x = make_float4(four[0], four[1], four[2], four[3]);
        }
    } else {
#pragma unroll
        for (u32 p = 0; p < 4; p++) {
            if (k + p >= inputs) continue;
            four[p] = x[p];
            if (GATE) x[p] = four[p] = activate(kind, four[p]) * y[p];
        }
    }
    fours[threadIdx.x] = make_float4(four[0], four[1], four[2], four[3]);
    __syncthreads();
    if (threadIdx.x >= PREPARERS / 4) return;
    const u32 near = threadIdx.x / 4, t = threadIdx.x % 4, group = blockIdx.x * (PREPARERS / 16) + near;
    float v[4][4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const float4 part = fours[near * 16 + s * 4 + t];
        v[s][0] = part.x, v[s][1] = part.y, v[s][2] = part.z, v[s][3] = part.w;
    }
    store_prepared(v, prepared, sums, row, group, supers, nt, t, group < supers * 4);
}

EXPORT prepare(float *x, uint4 *prepared, float *sums, u32 inputs, u32 nt) { after_others(); prepare_row<false>(x, x, 0, prepared, sums, inputs, nt); }

EXPORT gate_prepare(float *x, u32 kind, const float *y, uint4 *prepared, float *sums, u32 inputs, u32 nt) { after_others(); prepare_row<true>(x, y, kind, prepared, sums, inputs, nt); }

// Rows for the wide kernel (wide.cu): the same values and sums, in blocks of 128 rows. x is [block][16 inputs][8 rows a group][2][8 rows][8] bf16,
// so that 8 rows x 16 bytes follow each other as warpgroup instructions read them: place j of 16 inputs, [j / 8] and [j % 8], is input
// 4 (j % 8 / 2) + 2 (j / 8) + j % 2. Sums lie as in `prepare`. A warp takes 128 inputs of eight rows; rows that are none become zeros. With `gate`:
// out = x = activation(x) * y first.
template <bool GATE> __device__ __forceinline__ void prepare_wide_rows(float *x, const float *y, u32 kind, u32 *prepared, float *sums, u32 inputs, u32 rows) {
    const u32 pair = (blockIdx.x * blockDim.x + threadIdx.x) / 32, supers = (inputs + 255) / 256, lane = threadIdx.x % 32, t = lane % 4;
    const u32 row = blockIdx.y * 8 + lane / 4, block = row / 128, column = row % 128;
    if (pair >= supers * 2) return;
    x += (u64)row * inputs;
    y += (u64)row * inputs;
    float *own = sums + (u64)block * supers * 14 * 128 + column;
    float both = 0.f;
#pragma unroll
    for (u32 g = 0; g < 2; g++) {
        const u32 group = 2 * pair + g;
        float v[4][4], half[2];
        u32 words[8];
#pragma unroll
        for (u32 s = 0; s < 4; s++) {
            const u32 k = group * 64 + s * 16 + t * 4;
            if (row < rows && k + 4 <= inputs && inputs % 4 == 0) {
                const float4 four = *(const float4 *)(x + k);
                v[s][0] = four.x, v[s][1] = four.y, v[s][2] = four.z, v[s][3] = four.w;
                if (GATE) {
                    const float4 other = *(const float4 *)(y + k);
                    v[s][0] = activate(kind, v[s][0]) * other.x, v[s][1] = activate(kind, v[s][1]) * other.y;
                    v[s][2] = activate(kind, v[s][2]) * other.z, v[s][3] = activate(kind, v[s][3]) * other.w;
                    *(float4 *)(x + k) = make_float4(v[s][0], v[s][1], v[s][2], v[s][3]);
                }
                continue;
            }
#pragma unroll
            for (u32 p = 0; p < 4; p++) {
                v[s][p] = 0.f;
                if (row >= rows || k + p >= inputs) continue;
                v[s][p] = x[k + p];
                if (GATE) x[k + p] = v[s][p] = activate(kind, v[s][p]) * y[k + p];
            }
        }
        round_group(v, words, half);
        u32 *to = prepared + ((((u64)block * supers * 4 + group) * 4 * 16 + column / 8) * 2 * 8 + row % 8) * 4 + t;
#pragma unroll
        for (u32 s = 0; s < 4; s++) {
            to[s * 16 * 2 * 32] = words[2 * s];
            to[s * 16 * 2 * 32 + 32] = words[2 * s + 1];
        }
        const float whole = half[0] + half[1];
        both = g ? both + whole : whole;
        if (t == 0) own[2 * group * 128] = half[0];
        if (t == 1) own[(2 * group + 1) * 128] = half[1];
        if (t == 2) own[(supers * 8 + group) * 128] = whole;
    }
    if (t == 3) own[(supers * 12 + pair) * 128] = both;
}

EXPORT prepare_wide(float *x, u32 *prepared, float *sums, u32 inputs, u32 rows) { after_others(); prepare_wide_rows<false>(x, x, 0, prepared, sums, inputs, rows); }

EXPORT gate_prepare_wide(float *x, u32 kind, const float *y, u32 *prepared, float *sums, u32 inputs, u32 rows) { after_others(); prepare_wide_rows<true>(x, y, kind, prepared, sums, inputs, rows); }

// What is done to the heads of q, k and v after their matrices, in one launch: up to three jobs, each a norm, a rotation, a place in
// the pages, or some of these. Block x is a row, y a head of one of the jobs; the norm's threads are those of `rms_norm` at this width.
constexpr u32 NORM = 1, ROTATE = 2, KEYS = 4, VALUES = 8;

EXPORT heads(const float *x0, const float *x1, const float *x2, float *out0, float *out1, float *out2, const float *w0, const float *w1, const float *w2,
             u16 *pages0, u16 *pages1, u16 *pages2, u32 heads0, u32 heads1, u32 heads2, u32 what, const float *angles, const u32 *slots, u32 dim, u32 count, float eps, float *flags) {
    after_others();
    __shared__ __align__(16) float values[512];
    u32 head = blockIdx.y, job = 0;
    const u32 heads[3] = {heads0, heads1, heads2};
    while (job < 2 && head >= heads[job]) head -= heads[job++];
    const float *x = job == 0 ? x0 : job == 1 ? x1 : x2, *weight = job == 0 ? w0 : job == 1 ? w1 : w2;
    float *out = job == 0 ? out0 : job == 1 ? out1 : out2;
    u16 *pages = job == 0 ? pages0 : job == 1 ? pages1 : pages2;
    const u32 todo = what >> 4 * job;
    const u64 row = blockIdx.x, at = (row * heads[job] + head) * dim;
    if (todo & NORM && weight && threadIdx.x * 32 < dim) prefetch(weight + threadIdx.x * 32);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) values[i] = x[at + i];
    if (todo & NORM) {
        const float factor = inverse_rms(block_squares(values, dim), dim, eps);
        __syncthreads();
        for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
            const float v = values[i] * factor;
            values[i] = weight ? v * weight[i] : v;
        }
    }
    if (todo & ROTATE) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const float c = angles[row * 2 * count + i], s = angles[row * 2 * count + count + i], a = values[i], b = values[i + count];
            values[i] = fmaf(a, c, -(b * s));
            values[i + count] = fmaf(b, c, a * s);
        }
        __syncthreads();
    }
    if (todo & (NORM | ROTATE))
        for (u32 i = threadIdx.x; i < dim; i += blockDim.x) out[at + i] = values[i];
    if (!(todo & (KEYS | VALUES))) return;
    __syncthreads();
    if (todo & KEYS) append_key(values, pages, slots[row], heads[job], head, dim);
    if (todo & VALUES) append_value(values, pages, flags, slots[row], heads[job], head, dim);
}

// The kernels below take one value a thread: block x is a stretch of 256 of them, y the row where rows matter.
#define EACH(n) \
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x; \
    if (i >= (n)) return;

EXPORT add(float *x, const float *y, float scale, u64 n) {
    after_others();
    EACH(n)
    x[i] = (x[i] + y[i]) * scale;
}

EXPORT add_gated(float *x, const float *y, const float *gate, u32 width, u64 n) {
    after_others();
    EACH(n)
    x[i] = fmaf(sigmoid(gate[i / width]), y[i], x[i]);
}

EXPORT add_vector(float *x, const float *vector, u32 width, u64 n) {
    after_others();
    EACH(n)
    x[i] += vector[i % width];
}

EXPORT scale(float *x, const float *weight, float factor, u32 width, u64 n) {
    after_others();
    EACH(n)
    x[i] = weight ? x[i] * factor * weight[i % width] : x[i] * factor;
}

EXPORT softcap(float *x, float cap, u64 n) {
    after_others();
    EACH(n)
    x[i] = fmaf(x[i], 0.f, cap * tanhf(x[i] / cap));
}

EXPORT activate_mul(float *x, u32 kind, const float *y, u32 column, u32 width, u32 y_width, u64 n) {
    after_others();
    EACH(n)
    x[i] = activate(kind, x[i]) * y[i / width * y_width + column + i % width];
}

EXPORT columns(const float *x, float *out, u32 period, u32 offset, u32 width, u64 n) {
    after_others();
    EACH(n)
    out[i] = x[i / width * period + offset + i % width];
}

EXPORT copy(const float *x, float *out, u64 n) {
    after_others();
    EACH(n)
    out[i] = x[i];
}

// Rows of `a` and `b` side by side.
EXPORT join(const float *a, const float *b, float *out, u32 left, u32 right, u64 n) {
    after_others();
    EACH(n)
    const u32 width = left + right, column = i % width;
    const u64 row = i / width;
    out[i] = column < left ? a[row * left + column] : b[row * right + column - left];
}

EXPORT gather(const float *x, const u32 *rows, float *out, u32 width, u64 n) {
    after_others();
    EACH(n)
    out[i] = x[(u64)rows[i / width] * width + i % width];
}

EXPORT put_rows(float *x, const u32 *rows, const float *values, u32 width, u64 n) {
    after_others();
    EACH(n)
    x[(u64)rows[i / width] * width + i % width] = values[i];
}

// `axis` may be null: then the first of a row's positions.
EXPORT rope_angles(const u32 *positions, const u8 *axis, const float *frequencies, float *out, u32 axes, u32 count, u64 n) {
    after_others();
    EACH(n)
    const u64 row = i / count;
    const u32 f = i % count;
    // The angle is an f32 by definition; its sine is taken in double and rounded once.
    const float angle = (float)positions[row * axes + (axis ? axis[f] : 0)] * frequencies[f];
    double s, c;
    sincos((double)angle, &s, &c);
    out[row * 2 * count + f] = (float)c;
    out[row * 2 * count + count + f] = (float)s;
}

// One pair a thread: pairs of all heads of all rows.
EXPORT rope(float *x, const float *angles, u32 head_dim, u32 count, u32 width, u64 n) {
    after_others();
    EACH(n)
    const u32 pair = i % count, heads = width / head_dim;
    const u64 head = i / count, row = head / heads;
    const float c = angles[row * 2 * count + pair], s = angles[row * 2 * count + count + pair];
    float *at = x + row * width + head % heads * head_dim + pair;
    const float a = at[0], b = at[count];
    at[0] = fmaf(a, c, -(b * s));
    at[count] = fmaf(b, c, a * s);
}

// The place of the largest of `width` values, the lowest among equals, and whether one is not finite. By a whole block; its first thread gets it.
struct Best { float value; u32 place; int damaged; };

__device__ __forceinline__ void better(Best &best, float v, u32 i) {
    if (v > best.value || (v == best.value && i < best.place)) best.value = v, best.place = i;
}

__device__ __forceinline__ void best_of_lanes(Best &best) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float v = __shfl_xor_sync(~0u, best.value, step);
        const u32 i = __shfl_xor_sync(~0u, best.place, step);
        better(best, v, i);
    }
}

__device__ __forceinline__ Best best_of(const float *x, u32 width) {
    __shared__ float values[32];
    __shared__ u32 places[32];
    const Best none = {__uint_as_float(0xff800000u), 0xffffffffu, 0};
    Best best = none;
    float poison = 0.f;
    auto see = [&](float v, u32 i) {
        poison = fmaf(v, 0.f, poison);
        better(best, v, i);
    };
    if (((u64)x & 15) == 0 && width % 4 == 0) {
#pragma unroll 4
        for (u32 i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
            const float4 v = *(const float4 *)(x + i);
            see(v.x, i), see(v.y, i + 1), see(v.z, i + 2), see(v.w, i + 3);
        }
    } else {
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) see(x[i], i);
    }
    const int damaged = __syncthreads_or(!(poison == 0.f));
    best_of_lanes(best);
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best.value, places[threadIdx.x / 32] = best.place;
    __syncthreads();
    if (threadIdx.x >= 32) return none;
    const bool there = threadIdx.x < blockDim.x / 32;
    best = there ? Best{values[threadIdx.x], places[threadIdx.x], 0} : none;
    best_of_lanes(best);
    best.damaged = damaged;
    return best;
}

// All ones when a value is not finite; with `numbers` it is written as a number instead, then NaN.
__device__ __forceinline__ void put_best(const Best &best, u32 row, u32 *out, float *numbers) {
    if (numbers) numbers[row] = best.damaged ? __uint_as_float(0x7fc00000u) : (float)best.place;
    else out[row] = best.damaged ? 0xffffffffu : best.place;
}

// The place of a row's largest value. One block a row.
EXPORT argmax(const float *x, u32 *out, u32 width, float *numbers) {
    after_others();
    const Best best = best_of(x + (u64)blockIdx.x * width, width);
    if (threadIdx.x == 0) put_best(best, blockIdx.x, out, numbers);
}

// The same of long rows: block x is a stretch of `step` values, y the row. Then, of [row][stretch], one warp a row.
EXPORT argmax_parts(const float *x, Best *parts, u32 width, u32 step) {
    after_others();
    const u32 from = blockIdx.x * step;
    Best best = best_of(x + (u64)blockIdx.y * width + from, min(step, width - from));
    best.place += from;
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
}

EXPORT argmax_of_parts(const Best *parts, u32 *out, u32 count, float *numbers) {
    after_others();
    Best best = {__uint_as_float(0xff800000u), 0xffffffffu, 0};
    for (u32 i = threadIdx.x; i < count; i += 32) {
        const Best one = parts[blockIdx.x * count + i];
        better(best, one.value, one.place);
        best.damaged |= one.damaged;
    }
    best_of_lanes(best);
    best.damaged = __syncthreads_or(best.damaged);
    if (threadIdx.x == 0) put_best(best, blockIdx.x, out, numbers);
}
