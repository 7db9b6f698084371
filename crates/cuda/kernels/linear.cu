// Quantised matrices, and bf16 ones, by tensor cores: the narrow kernel, what stores a matrix and its input for it, and single rows.
//
// KIND: 0 affine codes, 1 E2M1, 2 E4M3, 3 bf16 values. BITS of a code, GROUP of values that share a scale, SCALE32: scales are f32.
//
// A matrix is stored as tiles of 16 outputs, each a run of superblocks of 256 inputs. Inside a superblock k = 16 i + 4 t + p, step i of
// the mma, t = lane % 4, p = 0..3: which k meets which place of an mma is free, as long as both sides agree, and this way a group of 16 or
// more values is a run of whole steps. Codes are split into planes of 4, 2 and 1 bits; a word of a plane holds what a lane needs of one,
// two or four steps, its low half for even p and its high half for odd p, so that a shift and a mask give a register of the mma.
//
// Order of a sum, by the shape alone: inputs are cut into SLICES of whole superblocks, a warp each. In a slice acc = 0; each group gives
// d, a chain of mma over its steps, then acc = fma(scale, d, acc), and for affine codes acc = fma(bias - OFFSET scale, sum(x), acc).
// Slices are added in order. Inputs were rounded to bf16; codes enter exactly, as OFFSET + code.

constexpr int SLICES = 8, SUPER = 256, TILE = 16;
constexpr bool FLOATS = KIND == 3;
constexpr int P4 = FLOATS ? 0 : BITS / 4, P2 = FLOATS ? 0 : BITS % 4 / 2, P1 = FLOATS ? 0 : BITS % 2;
constexpr int CODE_BYTES = FLOATS ? TILE * SUPER * 2 : 512 * BITS;
constexpr int PAIR_BYTES = (KIND == 0 ? 2 : 1) * (SCALE32 ? 4 : 2);
constexpr int GROUPS = SUPER / GROUP;
constexpr int ROW_SCALES = FLOATS ? 0 : GROUPS * PAIR_BYTES;  // bytes of a row's scales
constexpr int SUPER_BYTES = CODE_BYTES + TILE * ROW_SCALES;
constexpr float OFFSET = KIND == 0 && BITS < 8 ? 128.f : 0.f;
constexpr int STEPS = GROUP / 16;  // of a group

// What a lane needs of a superblock.
struct Super {
    uint4 p4[P4 > 0 ? P4 : 1][4], p2[2], p1, floats[FLOATS ? 16 : 1];
    u32 scales[2][ROW_SCALES > 0 ? ROW_SCALES / 4 : 1];  // of rows lane / 4 and lane / 4 + 8
};

// 16 bytes of it: far, in global memory, or near, in shared memory.
template <bool NEAR> __device__ __forceinline__ uint4 read_w(const char *p) { return NEAR ? *(const uint4 *)p : stream(p); }

template <bool NEAR> __device__ __forceinline__ void load(Super &s, const char *p, int lane) {
    if (FLOATS) {
#pragma unroll
        for (int i = 0; i < 16; i++) s.floats[FLOATS ? i : 0] = read_w<NEAR>(p + i * 512 + lane * 16);
        return;
    }
#pragma unroll
    for (int plane = 0; plane < P4; plane++)
#pragma unroll
        for (int q = 0; q < 4; q++) s.p4[plane][q] = read_w<NEAR>(p + plane * 2048 + q * 512 + lane * 16);
    if (P2) {
        s.p2[0] = read_w<NEAR>(p + P4 * 2048 + lane * 16);
        s.p2[1] = read_w<NEAR>(p + P4 * 2048 + 512 + lane * 16);
    }
    if (P1) s.p1 = read_w<NEAR>(p + P4 * 2048 + P2 * 1024 + lane * 16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const char *own = p + CODE_BYTES + (lane / 4 + 8 * half) * ROW_SCALES;
        if (ROW_SCALES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < ROW_SCALES / 16; i++) *(uint4 *)&s.scales[half][4 * i] = read_w<NEAR>(own + 16 * i);
        } else {
#pragma unroll
            for (int i = 0; i < ROW_SCALES / 4; i++) s.scales[half][i] = ((const u32 *)own)[i];
        }
    }
}

__device__ __forceinline__ void prefetch_super(const char *p, int lane) {
    for (int at = lane * 128; at < SUPER_BYTES + 127; at += 32 * 128) prefetch(p + min(at, SUPER_BYTES - 1));
}

// Register j of step i: outputs lane / 4 + 8 (j % 2), p = 2 (j / 2) and one more.
__device__ __forceinline__ u32 operand(const Super &s, int i, int j) {
    if (FLOATS) return ((const u32 *)&s.floats[FLOATS ? i : 0])[j];
    const int q = i / 4, step = i % 4;
    if (KIND == 0 && BITS == 4) return and_or(((const u32 *)&s.p4[0][q])[step] >> (4 * j), 0x000F000Fu, 0x43004300u);
    u32 code = 0;
    if (P4) code = ((const u32 *)&s.p4[0][q])[step] >> (4 * j) & 0x000F000Fu;
    if (P2) code |= (((const u32 *)&s.p2[q / 2])[q % 2 * 2 + step / 2] >> (2 * (step % 2 * 4 + j)) & 0x00030003u) << (P4 ? 4 : 0);
    if (P1) code |= (((const u32 *)&s.p1)[q] >> (step * 4 + j) & 0x00010001u) << (P4 ? 4 : 2);
    const u32 high = P4 == 2 ? ((const u32 *)&s.p4[P4 == 2 ? 1 : 0][q])[step] >> (4 * j) & 0x000F000Fu : 0;
    if (KIND == 1) return fma2((code & 0x00080008u) << 12 | (code & 0x00070007u) << 6, 0x7E807E80u, 0);
    if (KIND == 2) return fma2((high & 0x00080008u) << 12 | ((high & 0x00070007u) << 8 | code << 4), 0x7B807B80u, 0);
    // 128 + the low seven bits is exact; with an eighth bit, 128 is taken away where that bit is clear.
    if (BITS == 8) return fma2((~high >> 3 & 0x00010001u) * 0x4300u, 0xBF80BF80u, code | (high & 0x00070007u) << 4 | 0x43004300u);
    return code | 0x43004300u;
}

__device__ __forceinline__ float scale_of(const Super &s, int half, int group) {
    if (SCALE32) return __uint_as_float(s.scales[half][KIND == 0 ? 2 * group : group]);
    if (KIND == 0) return __uint_as_float(s.scales[half][group] << 16);
    return group % 2 ? __uint_as_float(s.scales[half][group / 2] & 0xffff0000u) : __uint_as_float(s.scales[half][group / 2] << 16);
}

__device__ __forceinline__ float bias_of(const Super &s, int half, int group) {
    return SCALE32 ? __uint_as_float(s.scales[half][2 * group + 1]) : __uint_as_float(s.scales[half][group] & 0xffff0000u);
}

// What a kernel reads of x: far, in global memory, or near, in shared memory.
template <bool NEAR, class T> __device__ __forceinline__ T read_x(const T *p) { return NEAR ? *p : __ldg(p); }

// What a group's products add to the sums of its slice; they begin anew behind it.
template <int NT, bool NEAR> __device__ __forceinline__ void add_group(const Super &w, int group, const float2 *sums, float d[NT][4], float acc[NT][4]) {
    const float scale[2] = {scale_of(w, 0, group), scale_of(w, 1, group)};
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] = fmaf(scale[e / 2], d[n][e], acc[n][e]), d[n][e] = 0.f;
    if (KIND != 0) return;
    const float offset[2] = {fmaf(-OFFSET, scale[0], bias_of(w, 0, group)), fmaf(-OFFSET, scale[1], bias_of(w, 1, group))};
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float2 sum = read_x<NEAR>(sums + (group * NT + n) * 4);
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] = fmaf(offset[e / 2], e % 2 ? sum.y : sum.x, acc[n][e]);
    }
}

// One superblock. x: [4][NT][2][32] of 16 bytes, two steps of a lane each; sums: [GROUPS][8 NT], as `store_prepared` leaves them. Near, only
// `places` of the 32 may be kept.
template <int NT, bool NEAR> __device__ __forceinline__ void multiply(const Super &w, const uint4 *x, const float2 *sums, float acc[NT][4], u32 places = 32) {
    auto x_of = [&](int i, int n) { return read_x<NEAR>(x + ((i / 4 * NT + n) * 2 + i % 4 / 2) * places); };
    // Groups are sums of their own, so that with few rows several go side by side: a warp would wait for each product of a chain.
    constexpr int BESIDE = NEAR && NT == 1 && STEPS > 1 && !FLOATS ? 2 : 1;
    float d[BESIDE][NT][4] = {};
    if (BESIDE > 1) {
#pragma unroll
        for (int first = 0; first < GROUPS; first += BESIDE) {
#pragma unroll
            for (int s = 0; s < STEPS; s += 2) {
                uint4 v[BESIDE];
#pragma unroll
                for (int g = 0; g < BESIDE; g++) v[g] = x_of((first + g) * STEPS + s, 0);
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int g = 0; g < BESIDE; g++) {
                        u32 a[4];
#pragma unroll
                        for (int j = 0; j < 4; j++) a[j] = operand(w, (first + g) * STEPS + s + k, j);
                        mma(d[g][0], a[0], a[1], a[2], a[3], k ? v[g].z : v[g].x, k ? v[g].w : v[g].y);
                    }
            }
#pragma unroll
            for (int g = 0; g < BESIDE; g++) add_group<NT, NEAR>(w, first + g, sums, d[g], acc);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        uint4 v[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) v[n] = x_of(i, n);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 a[4];
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = operand(w, i + k, j);
#pragma unroll
            for (int n = 0; n < NT; n++) mma(FLOATS ? acc[n] : d[0][n], a[0], a[1], a[2], a[3], k ? v[n].z : v[n].x, k ? v[n].w : v[n].y);
            if (!FLOATS && (i + k + 1) % STEPS == 0) add_group<NT, NEAR>(w, (i + k) / STEPS, sums, d[0], acc);
        }
    }
}

// A tile times 8 NT rows: `emit(row, output within the tile, value)` for each result.
template <int NT, class Emit> __device__ __forceinline__ void tile(const char *w, const uint4 *x, const float *sums, u32 supers, Emit emit) {
    __shared__ float partial[SLICES][NT][4][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int from = supers * slice / SLICES, to = supers * (slice + 1) / SLICES;
    float acc[NT][4] = {};
    w += (u64)from * SUPER_BYTES;
    // Weights depend on nothing: the first are on their way while others finish what this reads.
    if (from < to) prefetch_super(w, lane);
    wait_for_others();
    x += (u64)from * 4 * NT * 64 + lane;
    const float2 *own = (const float2 *)(sums + (u64)from * GROUPS * NT * 8) + lane % 4;
    Super s;
    for (int i = from; i < to; i++, w += SUPER_BYTES, x += 4 * NT * 64, own += GROUPS * NT * 4) {
        if (i + 1 < to) prefetch_super(w + SUPER_BYTES, lane);
        load<false>(s, w, lane);
        multiply<NT, false>(s, x, own, acc);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) partial[slice][n][e][lane] = acc[n][e];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 128; e += SLICES * 32) {
        const int l = e % 32, i = e / 32 % 4, n = e / 128;
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < SLICES; k++) sum += partial[k][n][i][l];
        emit(n * 8 + l % 4 * 2 + i % 2, l / 4 + i / 2 * 8, sum);
    }
}

// The sums of a block of 8 NT rows: 32, 64 and 128 values apart, one array after the other, each [groups][8 NT].
__device__ __forceinline__ const float *sums_of(const float *sums, u32 supers, int nt) {
    return sums + (u64)supers * 8 * nt * (GROUP == 64 ? 8 : GROUP == 128 ? 12 : 0);
}

// Up to three matrices of one format times the same rows: block x is a tile of one of them, block y a block of 8 NT rows. (An array of pointers,
// indexed, would lie in local memory.)
#define NARROW(NT, BLOCKS) \
    EXPORT __launch_bounds__(SLICES * 32, BLOCKS) \
    narrow_##NT(const char *w0, const char *w1, const char *w2, float *y0, float *y1, float *y2, u32 o0, u32 o1, u32 o2, \
                const uint4 *x, const float *sums, u32 supers, u32 rows) { \
        const u32 t0 = (o0 + TILE - 1) / TILE, t1 = t0 + (o1 + TILE - 1) / TILE; \
        const int which = blockIdx.x < t0 ? 0 : blockIdx.x < t1 ? 1 : 2; \
        const u32 t = blockIdx.x - (which == 0 ? 0 : which == 1 ? t0 : t1), count = which == 0 ? o0 : which == 1 ? o1 : o2, first = blockIdx.y * 8 * NT; \
        const char *w = which == 0 ? w0 : which == 1 ? w1 : w2; \
        float *y = which == 0 ? y0 : which == 1 ? y1 : y2; \
        const float *own = sums_of(sums + (u64)blockIdx.y * supers * 14 * 8 * NT, supers, NT); \
        tile<NT>(w + (u64)t * supers * SUPER_BYTES, x + (u64)blockIdx.y * supers * 4 * NT * 64, own, supers, [&](u32 row, u32 output, float v) { \
            row += first, output += t * TILE; \
            if (row < rows && output < count) y[(u64)row * count + output] = v; \
        }); \
    }
NARROW(1, FLOATS ? 2 : 4)
NARROW(2, FLOATS ? 2 : 3)
NARROW(4, 2)
NARROW(8, 1)

// One pair (row, rank) a block in y: the matrix of the pair's expert times row `pair / share` of x, stored in blocks of eight rows.
EXPORT __launch_bounds__(SLICES * 32) linear_pairs(const char *w, const u32 *experts, float *y, u32 outputs, const uint4 *x, const float *sums, u32 supers, u32 share) {
    wait_for_others();
    const u32 pair = blockIdx.y, row = pair / share, tiles = gridDim.x;
    x += (u64)(row / 8) * supers * 4 * 64;
    sums = sums_of(sums + (u64)(row / 8) * supers * 14 * 8, supers, 1);
    const char *own = w + ((u64)experts[pair] * tiles + blockIdx.x) * supers * SUPER_BYTES;
    float *out = y + (u64)pair * outputs;
    tile<1>(own, x, sums, supers, [&](u32 r, u32 output, float v) {
        output += blockIdx.x * TILE;
        if (r == row % 8 && output < outputs) out[output] = v;
    });
}

// From here on: single values. Bit stream of a row in the file, `code` of `bits` bits.
__device__ __forceinline__ u32 file_code(const u8 *row, u32 k) {
    const u32 bit = k * BITS, low = row[bit / 8];
    const u32 high = bit % 8 + BITS > 8 ? row[bit / 8 + 1] : 0;
    return (low | high << 8) >> (bit % 8) & ((1u << BITS) - 1);
}

__device__ __forceinline__ float e8m0(u32 b) { return b == 255 ? __uint_as_float(0x7fc00000u) : b ? __uint_as_float(b << 23) : __uint_as_float(1u << 22); }
__device__ __forceinline__ float e4m3(u32 b) {
    const float m = (float)(b & 7) / 8.f, v = (b >> 3 & 15) ? (1.f + m) * __uint_as_float(((b >> 3 & 15) + 120) << 23) : m * 0.015625f;
    return (b & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : b & 0x80 ? -v : v;
}

// Scale or bias `index` of the file. TYPE: 0 f32, 1 bf16, 2 f16; 3 E8M0, 4 E4M3.
__device__ __forceinline__ float file_scale(const u8 *p, u64 index, int type) {
    if (type == 0) return __uint_as_float(p[4 * index] | p[4 * index + 1] << 8 | p[4 * index + 2] << 16 | (u32)p[4 * index + 3] << 24);
    if (type == 1) return bf16_value(p[2 * index] | p[2 * index + 1] << 8);
    if (type == 2) return f16_value((u16)(p[2 * index] | p[2 * index + 1] << 8));
    return type == 3 ? e8m0(p[index]) : e4m3(p[index]);
}

// Stores a stack of matrices: block x a superblock, y a tile of all tiles of the stack. Matrices lie `stride` rows apart in the file.
EXPORT repack(const u8 *data, const u8 *scales, const u8 *biases, char *out, u32 outputs, u32 inputs, u32 stride, u32 tiles, int type) {
    wait_for_others();
    const u32 super = blockIdx.x, supers = gridDim.x, expert = blockIdx.y / tiles, first = blockIdx.y % tiles * TILE;
    char *to = out + ((u64)blockIdx.y * supers + super) * SUPER_BYTES;
    const u64 row_bytes = FLOATS ? (u64)inputs * 2 : (u64)inputs * BITS / 8;
    auto file_row = [&](u32 o) { return (u64)expert * stride + first + o; };
    auto at = [&](u32 o, u32 k) -> u32 {
        k += super * SUPER;
        if (first + o >= outputs || k >= inputs) return 0;
        const u8 *row = data + file_row(o) * row_bytes;
        if (FLOATS) return row[2 * k] | row[2 * k + 1] << 8;
        return file_code(row, k);
    };
    for (u32 w = threadIdx.x; w < CODE_BYTES / 4; w += blockDim.x) {
        u32 word = 0;
        if (FLOATS) {
            const u32 i = w / 128, lane = w % 128 / 4, j = w % 4, o = lane / 4 + 8 * (j % 2), k = 16 * i + lane % 4 * 4 + j / 2 * 2;
            word = at(o, k) | at(o, k + 1) << 16;
        } else {
            // Which plane, which of its codes' bits, and the steps a word covers.
            const bool four = w < P4 * 512, two = !four && w < P4 * 512 + P2 * 256;
            const u32 r = four ? w % 512 : w - P4 * 512 - (two ? 0 : P2 * 256);
            const u32 lane = four || two ? r % 128 / 4 : r / 4;
            const u32 step = four ? r / 128 * 4 + r % 4 : two ? (r / 128 * 2 + r % 4 / 2) * 4 + r % 2 * 2 : r % 4 * 4;
            const u32 bits = four ? 4 : two ? 2 : 1, shift = four ? w / 512 * 4 : two ? P4 * 4 : P4 * 4 + P2 * 2;
            for (u32 pair = 0; pair < 16 / bits; pair++)
                for (u32 odd = 0; odd < 2; odd++) {
                    const u32 j = pair % 4, o = lane / 4 + 8 * (j % 2), k = 16 * (step + pair / 4) + lane % 4 * 4 + j / 2 * 2 + odd;
                    word |= (at(o, k) >> shift & ((1u << bits) - 1)) << (bits * pair + 16 * odd);
                }
        }
        ((u32 *)to)[w] = word;
    }
    if (FLOATS) return;
    for (u32 e = threadIdx.x; e < TILE * GROUPS; e += blockDim.x) {
        const u32 o = e / GROUPS, group = e % GROUPS, k = super * SUPER + group * GROUP;
        float scale = 0.f, bias = 0.f;
        if (first + o < outputs && k < inputs) {
            const u64 index = file_row(o) * (inputs / GROUP) + k / GROUP;
            scale = file_scale(scales, index, type);
            if (KIND == 0) bias = file_scale(biases, index, type);
            // A NaN among the codes has no place among the finite ones: its whole group becomes NaN.
            if (KIND == 2)
                for (u32 i = 0; i < GROUP; i++)
                    if ((at(o, group * GROUP + i) & 0x7f) == 0x7f) scale = __uint_as_float(0x7fc00000u);
        }
        char *own = to + CODE_BYTES + o * ROW_SCALES + group * PAIR_BYTES;
        if (SCALE32) {
            *(float *)own = scale;
            if (KIND == 0) *(float *)(own + 4) = bias;
        } else {
            *(u16 *)own = to_bf16(scale);
            if (KIND == 0) *(u16 *)(own + 2) = to_bf16(bias);
        }
    }
}

// One value of a stored matrix.
__device__ float stored(const char *w, u32 supers, u32 row, u32 k) {
    const char *p = w + ((u64)(row / TILE) * supers + k / SUPER) * SUPER_BYTES;
    const u32 o = row % TILE, within = k % SUPER, i = within / 16, t = within % 16 / 4, odd = within % 2, j = o / 8 + within % 4 / 2 * 2, lane = o % 8 * 4 + t;
    if (FLOATS) return bf16_value(((const u16 *)p)[i * 256 + lane * 8 + j * 2 + odd]);
    const u32 q = i / 4, step = i % 4;
    const u32 *words = (const u32 *)p;
    u32 code = 0;
    for (int plane = 0; plane < P4; plane++) code |= (words[plane * 512 + q * 128 + lane * 4 + step] >> (4 * j + 16 * odd) & 15) << 4 * plane;
    if (P2) code |= (words[P4 * 512 + q / 2 * 128 + lane * 4 + q % 2 * 2 + step / 2] >> (2 * (step % 2 * 4 + j) + 16 * odd) & 3) << (P4 * 4);
    if (P1) code |= (words[P4 * 512 + P2 * 256 + lane * 4 + q] >> (step * 4 + j + 16 * odd) & 1) << (P4 * 4 + P2 * 2);
    const char *own = p + CODE_BYTES + o * ROW_SCALES + within / GROUP * PAIR_BYTES;
    const float scale = SCALE32 ? *(const float *)own : bf16_value(*(const u16 *)own);
    if (KIND == 0) {
        const float bias = SCALE32 ? *(const float *)(own + 4) : bf16_value(*(const u16 *)(own + 2));
        return (float)code * scale + bias;
    }
    if (KIND == 2) return e4m3(code) * scale;
    const u32 magnitude = code & 7;
    const float v = magnitude < 4 ? magnitude * 0.5f : magnitude == 7 ? 6.f : (float)(magnitude - 2);
    return (code & 8 ? -v : v) * scale;
}

// Block x is a row, y a stretch of its inputs.
EXPORT embed(const char *table, const u32 *ids, float *out, float scale, u32 inputs, u32 outputs, const float *numbers) {
    after_others();
    const u32 supers = (inputs + SUPER - 1) / SUPER, id = embedded_row(ids, numbers, outputs);
    const u32 k = blockIdx.y * blockDim.x + threadIdx.x;
    if (k < inputs)
        out[(u64)blockIdx.x * inputs + k] = id == 0xffffffffu ? __uint_as_float(0x7fc00000u) : stored(table, supers, id, k) * scale;
}

// One warp a row of the table: lane l takes inputs l, l + 32, ... in order, lanes are added by halves.
EXPORT row_dots(const char *table, const u32 *ids, const float *y, float *out, u32 inputs, u32 outputs, u32 count) {
    after_others();
    const u32 i = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, supers = (inputs + SUPER - 1) / SUPER;
    if (i >= count) return;
    float sum = 0.f;
    for (u32 k = lane; k < inputs; k += 32) sum = fmaf(stored(table, supers, ids[i], k), y[k], sum);
    sum = warp_sum(sum);
    if (lane == 0) out[i] = sum;
}
