// Predictions of W sparse GPs (conditional.py, `Frozen`) in one pass, compiled by native.py.
//
// A block of rows goes through everything at once: t², k(x, Z), a = B k, and the sums Σ a m and Σ a² E. Of a block only
// k is ever stored, in L1 or L2; torch makes ten passes over memory for the same.
//
// B is read in panels of PANEL rows, transposed: panel p holds B[rows of p, 0 .. depth) with its PANEL numbers for
// each column side by side. For a lower triangular B a panel ends at its diagonal. All rows take the same instructions
// in the same order, so a row's bits do not depend on the rows around it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 12;  // 2 · ROWS sums are kept in registers
#elif defined(__AVX__)
constexpr int LANES = 8, ROWS = 6;
#else
constexpr int LANES = 4, ROWS = 6;
#endif
constexpr int PANEL = 2 * LANES;
constexpr int CACHED = 1 << 16;  // numbers of k computed before B is read: 256 KB
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

static inline const Vector& at(const float* p) { return *reinterpret_cast<const Vector*>(p); }
static inline Vector& at(float* p) { return *reinterpret_cast<Vector*>(p); }

// 2^y for −126 ≤ y ≤ 0: the nearest integer n goes to the exponent, and a Taylor series (error 5e-9) does the rest.
static inline float power_of_2(float y) {
    const float shift = 12582912.0f;  // 1.5 · 2^23: the sum has no bits left for a fraction
    float shifted = y + shift, f = y - (shifted - shift);
    float p = 1.5252734e-5f;
    p = p * f + 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    uint32_t n, bits;
    std::memcpy(&n, &shifted, 4);
    std::memcpy(&bits, &p, 4);
    bits += n << 23;
    std::memcpy(&p, &bits, 4);
    return p;
}

constexpr float LOG2_E = 1.44269504f;

// The kinds of kernels.py, in the order of native.KINDS.
struct RBF {
    static float value(float t2) { return power_of_2(-0.5f * LOG2_E * t2); }
};
struct Matern12 {
    static float value(float t2) { return power_of_2(-LOG2_E * std::sqrt(t2)); }
};
struct Matern32 {
    static float value(float t2) {
        float t = std::sqrt(t2);
        return (1 + t) * power_of_2(-LOG2_E * t);
    }
};
struct Matern52 {
    static float value(float t2) {
        float t = std::sqrt(t2);
        return (1 + t + t2 * (1.0f / 3)) * power_of_2(-LOG2_E * t);
    }
};

// k(x, Z) of ROWS rows; t² is clamped where k vanishes, since denormal numbers are slow.
template <class Kind>
static void fill(const float* x, const float* zt, long D, long M, float horizon, float* __restrict k) {
    for (long j = 0; j < M; j += LANES) {
        Vector t2[ROWS] = {};
        for (long d = 0; d < D; d++) {
            Vector z = at(zt + d * M + j);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                Vector difference = x[r * D + d] - z;
                t2[r] += difference * difference;
            }
        }
        for (int r = 0; r < ROWS; r++) at(k + r * M + j) = t2[r];
    }
    for (long i = 0; i < ROWS * M; i++) k[i] = Kind::value(k[i] > horizon ? horizon : k[i]);
}

// Adds one panel's part of Σ a m and Σ a² E to the sums of ROWS rows.
static void add_panel(const float* k, long M, const float* b, long depth, const float* m, const float* excess,
                      float* sums) {
    Vector a[ROWS][2] = {};
    for (long p = 0; p < depth; p++) {
        Vector left = at(b + p * PANEL), right = at(b + p * PANEL + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            float value = k[r * M + p];
            a[r][0] += value * left;
            a[r][1] += value * right;
        }
    }
    for (int half = 0; half < 2; half++) {
        Vector weight = at(m + half * LANES), E = at(excess + half * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            at(sums + r * PANEL) += a[r][half] * weight;
            at(sums + r * PANEL + LANES) += a[r][half] * a[r][half] * E;
        }
    }
}

static float total(const float* lanes) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

using Fill = decltype(&fill<RBF>);

static void one_gp(Fill fill, long R, long D, long M, long panels, float horizon, const float* x, const float* zt,
                   const float* b, const int* depths, const float* m, const float* excess, float* mean, float* update) {
    const long blocks = std::max(1L, CACHED / (ROWS * M));
    std::vector<float> k(blocks * ROWS * M), sums(blocks * ROWS * PANEL), last(ROWS * D);
    for (long first = 0; first < R; first += blocks * ROWS) {
        const long count = std::min(blocks, (R - first + ROWS - 1) / ROWS);
        for (long i = 0; i < count; i++) {
            const float* rows = x + (first + i * ROWS) * D;
            const long left = R - first - i * ROWS;
            if (left < ROWS) {  // the last row is repeated to make a block
                for (long r = 0; r < ROWS; r++)
                    std::memcpy(&last[r * D], rows + std::min(r, left - 1) * D, D * sizeof(float));
                rows = last.data();
            }
            fill(rows, zt, D, M, horizon, &k[i * ROWS * M]);
        }
        std::fill(sums.begin(), sums.end(), 0.0f);
        const float* panel = b;
        for (long p = 0; p < panels; panel += depths[p] * PANEL, p++)
            for (long i = 0; i < count; i++)
                add_panel(&k[i * ROWS * M], M, panel, depths[p], m + p * PANEL, excess + p * PANEL,
                          &sums[i * ROWS * PANEL]);
        for (long r = 0; r < std::min(count * ROWS, R - first); r++) {
            mean[first + r] = total(&sums[r * PANEL]);
            update[first + r] = total(&sums[r * PANEL + LANES]);
        }
    }
}

extern "C" int panel_rows() { return PANEL; }

// Moments of W GPs at R rows: x (W, R, D), zt (W, D, M), b (W, size), m and excess (W, panels · PANEL), with M a
// multiple of LANES.
extern "C" void moments(int kind, long W, long R, long D, long M, long panels, long size, float horizon, const float* x,
                        const float* zt, const float* b, const int* depths, const float* m, const float* excess,
                        float* mean, float* update) {
    const Fill kinds[] = {fill<RBF>, fill<Matern12>, fill<Matern32>, fill<Matern52>};
    for (long w = 0; w < W; w++)
        one_gp(kinds[kind], R, D, M, panels, horizon, x + w * R * D, zt + w * D * M, b + w * size, depths,
               m + w * panels * PANEL, excess + w * panels * PANEL, mean + w * R, update + w * R);
}
