// Norms, and what is done to single values. A row's or head's values are summed by as many threads as its width alone decides.

// Sum of squares of `width` values by the whole block: thread i takes i, i + threads, ... in order; lanes by halves; warps in order.
__device__ float block_squares(const float *x, int width) {
    __shared__ float warps[32];
    float sum = 0.f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    sum = warp_sum(sum);
    if (blockDim.x == 32) return sum;
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.f;
    for (int w = 0; w < blockDim.x / 32; w++) sum += warps[w];
    return sum;
}

// NaN when the sum overflowed: the row would silently become zeros.
__device__ __forceinline__ float inverse_rms(float squares, int width, float eps) {
    const float mean = squares / (float)width;
    return fmaf(mean, 0.f, 1.f / sqrtf(mean + eps));
}

// One block a row or head. `weight` may be null.
EXPORT rms_norm(const float *x, const float *weight, float *out, u32 width, float eps) {
    x += (u64)blockIdx.x * width;
    out += (u64)blockIdx.x * width;
    const float factor = inverse_rms(block_squares(x, width), width, eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float v = x[i] * factor;
        out[i] = weight ? v * weight[i] : v;
    }
}

EXPORT add_rms_norm(float *residual, const float *y, const float *weight, u32 width, float eps, float scale) {
    residual += (u64)blockIdx.x * width;
    y += (u64)blockIdx.x * width;
    const float factor = inverse_rms(block_squares(y, width), width, eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        residual[i] = (residual[i] + y[i] * factor * weight[i]) * scale;
}

// The kernels below take one value a thread: block x is a stretch of 256 of them, y the row where rows matter.
#define EACH(n) \
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x; \
    if (i >= (n)) return;

EXPORT add(float *x, const float *y, float scale, u64 n) {
    EACH(n)
    x[i] = (x[i] + y[i]) * scale;
}

EXPORT add_gated(float *x, const float *y, const float *gate, u32 width, u64 n) {
    EACH(n)
    x[i] = fmaf(sigmoid(gate[i / width]), y[i], x[i]);
}

EXPORT add_vector(float *x, const float *vector, u32 width, u64 n) {
    EACH(n)
    x[i] += vector[i % width];
}

EXPORT scale(float *x, const float *weight, float factor, u32 width, u64 n) {
    EACH(n)
    x[i] = weight ? x[i] * factor * weight[i % width] : x[i] * factor;
}

EXPORT softcap(float *x, float cap, u64 n) {
    EACH(n)
    x[i] = fmaf(x[i], 0.f, cap * tanhf(x[i] / cap));
}

EXPORT activate_mul(float *x, u32 kind, const float *y, u32 column, u32 width, u32 y_width, u64 n) {
    EACH(n)
    x[i] = activate(kind, x[i]) * y[i / width * y_width + column + i % width];
}

EXPORT columns(const float *x, float *out, u32 period, u32 offset, u32 width, u64 n) {
    EACH(n)
    out[i] = x[i / width * period + offset + i % width];
}

EXPORT copy(const float *x, float *out, u64 n) {
    EACH(n)
    out[i] = x[i];
}

EXPORT gather(const float *x, const u32 *rows, float *out, u32 width, u64 n) {
    EACH(n)
    out[i] = x[(u64)rows[i / width] * width + i % width];
}

EXPORT put_rows(float *x, const u32 *rows, const float *values, u32 width, u64 n) {
    EACH(n)
    x[(u64)rows[i / width] * width + i % width] = values[i];
}

// `axis` may be null: then the first of a row's positions.
EXPORT rope_angles(const u32 *positions, const u8 *axis, const float *frequencies, float *out, u32 axes, u32 count, u64 n) {
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
    EACH(n)
    const u32 pair = i % count, heads = width / head_dim;
    const u64 head = i / count, row = head / heads;
    const float c = angles[row * 2 * count + pair], s = angles[row * 2 * count + count + pair];
    float *at = x + row * width + head % heads * head_dim + pair;
    const float a = at[0], b = at[count];
    at[0] = fmaf(a, c, -(b * s));
    at[count] = fmaf(b, c, a * s);
}
