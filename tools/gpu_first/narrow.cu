// What a narrow 4-bit linear reaches on a GPU, before there is a backend: a laboratory, not a part of the program.
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o narrow narrow.cu && ./narrow
//
// Up to 8 (NT = 1) or 16 (NT = 2) rows of bf16 times affine weights of 4 bits in groups of 64, by mma.sync m16n8k16. Checks the results
// against sums in double, and 8 rows against the first 8 of 16 bit for bit; prints the time of each shape alone and of the four linears of a layer
// in a CUDA graph, beside what the machine copies and reads.
//
// Layout of a weight: tiles of 16 outputs, each a run of superblocks of 256 values of k: 2,048 bytes of codes, then for each output four
// (scale, bias) pairs of bf16. Group q of a superblock is 512 bytes, 16 a lane: word s of lane l has what step s of the mma wants of it, nibble j
// the first and nibble j + 4 the second half of register j. Lane l's k are l % 4 * 16 + 4 s .. + 3: x is stored so that they are 16-byte loads.
//
// Arithmetic: a code enters the mma as the bf16 128 + q, which is exact; a group of 64 gives d = sum((128 + q) x), and
// acc = fma(bias - 128 scale, sum(x), fma(scale, d, acc)). K is cut into SLICES by the shape alone, one a warp, added in order.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("line %d: %s\n", __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int SLICES = 8, SUPER = 256, SUPER_BYTES = 2048 + 256, TILE = 16;

__device__ __forceinline__ void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Weights are read once: they leave no trace in the first-level cache, which x needs.
__device__ __forceinline__ uint4 stream(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

struct Super { uint4 codes[4], pairs[2]; };

__device__ __forceinline__ void load(Super &s, const char *p, int lane) {
#pragma unroll
    for (int q = 0; q < 4; q++) s.codes[q] = stream(p + q * 512 + lane * 16);
    s.pairs[0] = stream(p + 2048 + lane / 4 * 16);
    s.pairs[1] = stream(p + 2048 + (lane / 4 + 8) * 16);
}

// x [group][NT][2][32] of 16 bytes and the sums of its groups [group][8 NT], as `prepare` leaves them.
template <int NT> __device__ __forceinline__ void multiply(const Super &w, const uint4 *x, const float2 *sums, float acc[NT][4]) {
#pragma unroll
    for (int q = 0; q < 4; q++) {
        uint4 v[NT][2];
        float2 sum[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            v[n][0] = __ldg(x + (q * NT + n) * 64);
            v[n][1] = __ldg(x + (q * NT + n) * 64 + 32);
            sum[n] = __ldg(sums + (q * NT + n) * 4);
        }
        const uint32_t first = ((const uint32_t *)&w.pairs[0])[q], second = ((const uint32_t *)&w.pairs[1])[q];
        const float scale[2] = {__uint_as_float(first << 16), __uint_as_float(second << 16)};
        const float offset[2] = {fmaf(-128.f, scale[0], __uint_as_float(first & 0xffff0000u)), fmaf(-128.f, scale[1], __uint_as_float(second & 0xffff0000u))};
        float d[NT][4] = {};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t a[4];
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = (((const uint32_t *)&w.codes[q])[s] >> (4 * j) & 0x000F000Fu) | 0x43004300u;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint32_t *b = (const uint32_t *)&v[n][0];
                mma(d[n], a, b[2 * s], b[2 * s + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[n][i] = fmaf(offset[i / 2], i % 2 ? sum[n].y : sum[n].x, fmaf(scale[i / 2], d[n][i], acc[n][i]));
    }
}

// One tile a block. The first superblock is asked for before the kernel before has ended: weights depend on nothing.
template <int NT, bool EARLY> __global__ void __launch_bounds__(SLICES * 32, 4)
narrow(const char *__restrict__ weights, const uint4 *x, const float *sums, float *y, int outputs, int inputs, int rows) {
    __shared__ float partial[SLICES][NT][4][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32, supers = inputs / SUPER;
    const int from = supers * slice / SLICES, to = supers * (slice + 1) / SLICES;
    const char *p = weights + ((size_t)blockIdx.x * supers + from) * SUPER_BYTES;
    float acc[NT][4] = {};
    Super w;
    if (EARLY) {
        asm volatile("griddepcontrol.launch_dependents;");
        if (from < to) load(w, p, lane);
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    x += (size_t)from * 4 * NT * 64 + lane;
    const float2 *own = (const float2 *)(sums + from * 4 * NT * 8) + lane % 4;
    for (int s = from; s < to; s++, p += SUPER_BYTES, x += 4 * NT * 64, own += 4 * NT * 4) {
        if (!EARLY || s > from) load(w, p, lane);
        multiply<NT>(w, x, own, acc);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) partial[slice][n][i][lane] = acc[n][i];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 128; e += SLICES * 32) {
        const int l = e % 32, i = e / 32 % 4, n = e / 128;
        float sum = 0;
        for (int k = 0; k < SLICES; k++) sum += partial[k][n][i][l];
        const int row = n * 8 + l % 4 * 2 + i % 2, output = blockIdx.x * TILE + l / 4 + i / 2 * 8;
        if (row < rows) y[(size_t)row * outputs + output] = sum;
    }
}

// Stores 8 NT rows of x as the mma reads them, with the sums of their groups.
__global__ void prepare(const __nv_bfloat16 *x, uint4 *out, float *sums, int inputs) {
    const int group = blockIdx.x, n = blockIdx.y, nt = gridDim.y, lane = threadIdx.x;
    const __nv_bfloat16 *row = x + (size_t)(n * 8 + lane / 4) * inputs + group * 64 + lane % 4 * 16;
    uint4 v[2];
    memcpy(v, row, 32);
    out[((size_t)group * nt + n) * 64 + lane] = v[0];
    out[((size_t)group * nt + n) * 64 + 32 + lane] = v[1];
    float sum = 0;
    for (int i = 0; i < 16; i++) sum += __bfloat162float(row[i]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) sums[(group * nt + n) * 8 + lane / 4] = sum;
}

__global__ void __launch_bounds__(256) read_all(const uint4 *p, size_t count, uint32_t *out) {
    const size_t each = count / gridDim.x;
    uint32_t a = 0;
    for (size_t i = threadIdx.x; i + 768 < each; i += 1024) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = stream(p + each * blockIdx.x + i + j * 256);
#pragma unroll
        for (int j = 0; j < 4; j++) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (a == 0x12345) *out = a;
}

struct Rows { uint4 *x; float *sums; };
struct Weight { int outputs, inputs; size_t bytes; std::vector<char> host; char *device; };

static Weight make_weight(int outputs, int inputs, uint32_t seed) {
    Weight w{outputs, inputs, (size_t)outputs / TILE * (inputs / SUPER) * SUPER_BYTES, {}, nullptr};
    w.host.resize(w.bytes);
    for (size_t i = 0; i < w.bytes; i += 4) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t word = seed ^ seed >> 16;
        memcpy(&w.host[i], &word, 4);
    }
    for (size_t b = 0; b < w.bytes / SUPER_BYTES; b++)
        for (int i = 0; i < 64; i++) {
            __nv_bfloat16 pair[2] = {__float2bfloat16(0.001f + 0.0001f * ((b * 7 + i * 13) % 100)), __float2bfloat16(-0.0005f * ((b * 3 + i * 5) % 100))};
            memcpy(&w.host[b * SUPER_BYTES + 2048 + i * 4], pair, 4);
        }
    CHECK(cudaMalloc(&w.device, w.bytes));
    CHECK(cudaMemcpy(w.device, w.host.data(), w.bytes, cudaMemcpyHostToDevice));
    return w;
}

static double stored(const Weight &w, int output, int k) {
    const char *b = &w.host[((size_t)(output / TILE) * (w.inputs / SUPER) + k / SUPER) * SUPER_BYTES];
    const int q = k % SUPER / 64, within = k % 64, step = within % 16 / 4, pos = within % 4, o = output % TILE;
    const int j = o / 8 + 2 * (pos / 2), nibble = pos % 2 ? j + 4 : j;
    uint32_t word;
    __nv_bfloat16 pair[2];
    memcpy(&word, b + q * 512 + (o % 8 * 4 + within / 16) * 16 + step * 4, 4);
    memcpy(pair, b + 2048 + o * 16 + q * 4, 4);
    return (double)(word >> (4 * nibble) & 15) * __bfloat162float(pair[0]) + __bfloat162float(pair[1]);
}

template <int NT, bool EARLY> static void launch(cudaStream_t stream, const char *w, int outputs, int inputs, const Rows &rows, float *y) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = outputs / TILE;
    config.blockDim = SLICES * 32;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = EARLY;
    CHECK(cudaLaunchKernelEx(&config, narrow<NT, EARLY>, w, (const uint4 *)rows.x, (const float *)rows.sums, y, outputs, inputs, 8 * NT));
}

static float median_us(cudaStream_t stream, int turns, const std::function<void()> &work) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < turns + 2; i++) {
        CHECK(cudaEventRecord(begin, stream));
        work();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 1) times.push_back(1e3f * ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main() {
    cudaDeviceProp about;
    CHECK(cudaGetDeviceProperties(&about, 0));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    const size_t large = 2ull << 30;
    char *a, *b;
    CHECK(cudaMalloc(&a, large));
    CHECK(cudaMalloc(&b, large));
    const float copy = median_us(s, 9, [&] { CHECK(cudaMemcpyAsync(b, a, large, cudaMemcpyDeviceToDevice, s)); });
    const float read = median_us(s, 9, [&] { read_all<<<about.multiProcessorCount * 8, 256, 0, s>>>((const uint4 *)a, large / 16, (uint32_t *)b); });
    printf("%s, %d SMs; copies %.2f TB/s (read and written), reads %.2f TB/s\n", about.name, about.multiProcessorCount, 2e-6 * large / copy, 1e-6 * large / read);
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));

    // The linears of a sliding layer of the 31B shape: q, k, v; o; gate and up; down.
    const int shapes[4][2] = {{16384, 5376}, {5376, 8192}, {43008, 5376}, {5376, 21504}};
    const int widest = 22016, most = 43008;
    __nv_bfloat16 *x;
    float *y[2];
    Rows rows[2];
    std::vector<__nv_bfloat16> host(16 * widest);
    for (auto &v : host) v = __float2bfloat16((rand() % 2001 - 1000) / 1000.f);
    CHECK(cudaMalloc(&x, host.size() * 2));
    CHECK(cudaMemcpy(x, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
    for (int i = 0; i < 2; i++) {
        CHECK(cudaMalloc(&y[i], 16ull * most * 4));
        CHECK(cudaMalloc(&rows[i].x, 16ull * widest * 2));
        CHECK(cudaMalloc(&rows[i].sums, widest / 64 * 16 * 4));
    }
    constexpr int LAYERS = 8;  // Enough that no weight is in a cache when its turn comes.
    std::vector<std::vector<Weight>> layers;
    size_t bytes = 0;
    for (int l = 0; l < LAYERS; l++) {
        layers.emplace_back();
        for (auto &shape : shapes) layers[l].push_back(make_weight(shape[0], shape[1], l + 1)), bytes += layers[l].back().bytes;
    }
    for (int i = 0; i < 4; i++) {
        const int n = shapes[i][0], k = shapes[i][1];
        prepare<<<dim3(k / 64, 1), 32, 0, s>>>(x, rows[0].x, rows[0].sums, k);
        prepare<<<dim3(k / 64, 2), 32, 0, s>>>(x, rows[1].x, rows[1].sums, k);
        launch<1, true>(s, layers[0][i].device, n, k, rows[0], y[0]);
        launch<2, false>(s, layers[0][i].device, n, k, rows[1], y[1]);
        std::vector<float> narrow8(8ull * n), narrow16(8ull * n);
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaMemcpy(narrow8.data(), y[0], narrow8.size() * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(narrow16.data(), y[1], narrow16.size() * 4, cudaMemcpyDeviceToHost));
        double error = 0, size = 0;
        for (int o = 0; o < n; o += 1013)
            for (int r = 0; r < 8; r += 3) {
                double want = 0;
                for (int j = 0; j < k; j++) want += stored(layers[0][i], o, j) * __bfloat162float(host[(size_t)r * k + j]);
                error += pow(narrow8[(size_t)r * n + o] - want, 2), size += want * want;
            }
        const bool same = !memcmp(narrow8.data(), narrow16.data(), narrow8.size() * 4);
        float us[4];
        auto alone = [&](auto call) { return median_us(s, 15, [&] { for (auto &layer : layers) call(layer[i].device); }) / LAYERS; };
        us[0] = alone([&](char *w) { launch<1, false>(s, w, n, k, rows[0], y[0]); });
        us[1] = alone([&](char *w) { launch<1, true>(s, w, n, k, rows[0], y[0]); });
        us[2] = alone([&](char *w) { launch<2, false>(s, w, n, k, rows[1], y[1]); });
        us[3] = alone([&](char *w) { launch<2, true>(s, w, n, k, rows[1], y[1]); });
        printf("%5d x %5d, %5.1f MB: relative error %.1e, 8 and 16 rows %s; us (TB/s): 8 rows %.1f (%.2f), early %.1f (%.2f); 16 rows %.1f, early %.1f (%.2f)\n", n, k,
               layers[0][i].bytes / 1e6, sqrt(error / size), same ? "equal" : "DIFFER", us[0], layers[0][i].bytes / us[0] * 1e-6, us[1], layers[0][i].bytes / us[1] * 1e-6, us[2],
               us[3], layers[0][i].bytes / us[3] * 1e-6);
        if (!same || !(error / size < 1e-10)) return 1;
    }
    auto graph_of = [&](auto call) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        for (auto &layer : layers)
            for (int i = 0; i < 4; i++) call(layer[i].device, shapes[i][0], shapes[i][1]);
        CHECK(cudaStreamEndCapture(s, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        return exec;
    };
    const cudaGraphExec_t graphs[4] = {
        graph_of([&](char *w, int n, int k) { launch<1, false>(s, w, n, k, rows[0], y[0]); }), graph_of([&](char *w, int n, int k) { launch<1, true>(s, w, n, k, rows[0], y[0]); }),
        graph_of([&](char *w, int n, int k) { launch<2, false>(s, w, n, k, rows[1], y[1]); }), graph_of([&](char *w, int n, int k) { launch<2, true>(s, w, n, k, rows[1], y[1]); })};
    const char *names[4] = {"8 rows", "8 rows, early", "16 rows", "16 rows, early"};
    for (int i = 0; i < 4; i++) {
        const float us = median_us(s, 15, [&] { CHECK(cudaGraphLaunch(graphs[i], s)); });
        printf("%d layers in a graph, %s: %.1f us a layer, %.2f TB/s, %.0f %% of what is read\n", LAYERS, names[i], us / LAYERS, bytes / us * 1e-6, 100 * (bytes / us) / (large / read));
    }
}
