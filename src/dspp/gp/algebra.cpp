// M × M matrices of the inducing points (linalg.py, kernels.py): K_ZZ, its inverse root, and products that skip the
// zeros of triangular factors.
//
// Everything is made of one product, out = Xᵀ Y for matrices stored by rows. Tasks are cut in the same way for any number
// of threads, so no bit depends on it.

#include "common.h"

// Σ_p X[p, 0 .. ROWS] ⊗ Y[p, 0 .. PANEL] over `count` rows p of X and Y, which have rows of `xs` and `ys` numbers.
template <class T>
__attribute__((noinline)) static void outer(const T* X, long xs, const T* Y, long ys, long count,
                                            typename Lanes<T>::Register (&out)[ROWS][2]) {
    typename Lanes<T>::Register sums[ROWS][2] = {};
    for (long p = 0; p < count; p++, X += xs, Y += ys) {
        typename Lanes<T>::Register left = at(Y), right = at(Y + Lanes<T>::count);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            sums[r][0] += X[r] * left;
            sums[r][1] += X[r] * right;
        }
    }
    std::memcpy(out, sums, sizeof(sums));
}

// ---------------------------------------------------------------- K_ZZ in double

template <class Kind>
static void kernel_row(const float* zt, long D, long M, long i, double horizon, double* __restrict K,
                       float* __restrict slope) {
    std::fill_n(K, M, 0.0);
    for (long d = 0; d < D; d++) {
        const double here = zt[d * M + i];
        for (long j = 0; j < M; j++) {
            double difference = here - double(zt[d * M + j]);
            K[j] += difference * difference;
        }
    }
    for (long j = 0; j < M; j++) {
        double exact;
        K[j] = Kind::value(K[j] > horizon ? horizon : K[j], exact);
        slope[j] = float(exact);
    }
}

using KernelRow = decltype(&kernel_row<RBF>);
static const KernelRow KINDS[] = {kernel_row<RBF>, kernel_row<Matern12>, kernel_row<Matern32>, kernel_row<Matern52>};

// K (W, M, M) and its slope for the points zt (W, D, M).
extern "C" void kernel_matrix(long W, long D, long M, int kind, double horizon, int threads, const float* zt, double* K,
                              float* slope) {
    const long step = 16, tasks = ceil_div(M, step);
    parallel(W * tasks, threads, [=](long t) {
        const long w = t / tasks, first = t % tasks * step;
        for (long i = first; i < std::min(M, first + step); i++)
            KINDS[kind](zt + w * D * M, D, M, i, horizon, K + (w * M + i) * M, slope + (w * M + i) * M);
    });
}

// ---------------------------------------------------------------- the inverse root in double

constexpr long WIDTH = 2 * Lanes<double>::count;  // columns of a panel
constexpr long BLOCK = 4 * ROWS;                  // rows factorised at a time; a multiple of WIDTH

// K = Uᵀ U and B = U⁻ᵀ, block by block of rows.
struct Root {
    long M, size, stride;  // M; in whole blocks; numbers per row, an odd number of cache lines to spread columns
    double *U, *B, *V;     // (size, stride) each; inverses of the diagonal blocks of U, (size, BLOCK)
    bool failed = false;

    Root(long M, double* memory)
        : M(M), size(ceil_div(M, BLOCK) * BLOCK), stride(size | 8), U(memory), B(U + size * stride),
          V(B + size * stride) {}

    long numbers() const { return size * (2 * stride + BLOCK); }

    void start(const double* K, double jitter) {
        std::fill_n(V, size * BLOCK, 0.0);
        std::fill_n(U + M * stride, (size - M) * stride, 0.0);
        for (long i = 0; i < M; i++) {
            std::copy(K + i * M + i, K + (i + 1) * M, U + i * stride + i);
            std::fill(U + i * stride + M, U + (i + 1) * stride, 0.0);
            U[i * stride + i] += jitter;
        }
    }

    // Rows a .. a + BLOCK of U, columns c on: subtract what the rows above explain.
    void reduce(long a, long c) {
        for (long i = a; i < std::min(M, a + BLOCK); i += ROWS) {
            Lanes<double>::Register sums[ROWS][2];
            outer(&U[i], stride, &U[c], stride, a, sums);
            for (long r = 0; r < ROWS; r++)
                for (int half = 0; half < 2; half++)
                    at(&U[(i + r) * stride + c + half * Lanes<double>::count]) -= sums[r][half];
        }
    }

    // out[a .. a + BLOCK, c ...] = sign · V_aᵀ in, for the BLOCK rows `in`.
    void solve(long a, const double* in, long in_stride, double sign, double* out) {
        for (long i = 0; i < std::min(M - a, BLOCK); i += ROWS) {
            Lanes<double>::Register sums[ROWS][2];
            outer(&V[a * BLOCK + i], BLOCK, in, in_stride, i + ROWS, sums);
            for (long r = 0; r < ROWS; r++)
                for (int half = 0; half < 2; half++)
                    at(out + (a + i + r) * stride + half * Lanes<double>::count) = sign * sums[r][half];
        }
    }

    // Columns c ... of rows a .. a + BLOCK of U, given what `reduce` has left of them.
    void finish(long a, long c) {
        double rows[BLOCK * WIDTH];
        for (long r = 0; r < BLOCK; r++) std::memcpy(rows + r * WIDTH, &U[(a + r) * stride + c], sizeof(double) * WIDTH);
        solve(a, rows, WIDTH, 1.0, &U[c]);
    }

    void factorise() {
        for (long a = 0; a < M; a += BLOCK) {
            if (a)
                for (long c = a; c < M; c += WIDTH) reduce(a, c);
            factorise_diagonal(a);
            for (long c = a + BLOCK; c < M; c += WIDTH) finish(a, c);
        }
    }

    // The diagonal block of U at a, in place, and its inverse.
    void factorise_diagonal(long a) {
        const long n = std::min(BLOCK, M - a);
        double* u = &U[a * stride + a];
        double* v = &V[a * BLOCK];
        for (long j = 0; j < n; j++) {
            const double pivot = u[j * stride + j], root = std::sqrt(pivot);
            if (!(pivot > 0) || !std::isfinite(root)) failed = true;
            for (long k = j; k < n; k++) u[j * stride + k] /= root;
            for (long i = j + 1; i < n; i++)
                for (long k = i; k < n; k++) u[i * stride + k] -= u[j * stride + i] * u[j * stride + k];
        }
        for (long i = n - 1; i >= 0; i--) {
            double* row = v + i * BLOCK;
            row[i] = 1;
            for (long p = i + 1; p < n; p++)
                for (long k = p; k < n; k++) row[k] -= u[i * stride + p] * v[p * BLOCK + k];
            for (long k = i; k < n; k++) row[k] /= u[i * stride + i];
        }
    }

    // Columns c ... of B, by blocks of rows.
    void invert(long c) {
        const long start = c / BLOCK * BLOCK;
        double rows[BLOCK * WIDTH];
        for (long i = 0; i < BLOCK; i++)
            for (long k = 0; k < WIDTH; k++) rows[i * WIDTH + k] = start + i == c + k;
        solve(start, rows, WIDTH, 1.0, &B[c]);
        for (long a = start + BLOCK; a < M; a += BLOCK) {
            for (long i = 0; i < std::min(M - a, BLOCK); i += ROWS) {
                Lanes<double>::Register sums[ROWS][2];
                outer(&U[start * stride + a + i], stride, &B[start * stride + c], stride, a - start, sums);
                std::memcpy(rows + i * WIDTH, sums, sizeof(sums));
            }
            solve(a, rows, WIDTH, -1.0, &B[c]);
        }
    }
};

extern "C" long root_numbers(long M) { return Root(M, nullptr).numbers(); }

// B = L⁻¹ of K + jitter = L Lᵀ for W matrices; failed[w] is 1 if there is none. `memory` holds W · root_numbers(M).
extern "C" void inverse_root(long W, long M, int threads, const double* K, const double* jitter, double* memory,
                             double* B, int* failed) {
    parallel(W, threads, [=](long w) {  // one thread per matrix: two would wait for each other's cache lines
        Root root(M, memory + w * root_numbers(M));
        root.start(K + w * M * M, jitter[w]);
        root.factorise();
        for (long c = 0; c < M; c += WIDTH) root.invert(c);
        failed[w] = root.failed;
        for (long i = 0; i < M; i++) {
            double* row = B + (w * M + i) * M;
            std::copy_n(root.B + i * root.stride, i + 1, row);
            std::fill(row + i + 1, row + M, 0.0);
        }
    });
}

// ---------------------------------------------------------------- products in float

enum Shape { FULL, LOWER, UPPER };
constexpr long PANEL = 2 * Lanes<float>::count;

// out = Xᵀ Y, or of its lower triangle the blocks that hold it, for W matrices; M is at least ROWS.
extern "C" void transposed_product(long W, long M, int threads, int x_shape, int y_shape, int lower, const float* X,
                                   const float* Y, float* out) {
    const long panels = ceil_div(M, PANEL);
    parallel(W * panels, threads, [=](long t) {
        const long w = t % W, j = t / W * PANEL, width = std::min(PANEL, M - j);
        const long first = y_shape == LOWER ? j : 0, end = y_shape == UPPER ? j + width : M;
        const float *x = X + w * M * M, *y = Y + w * M * M;
        std::vector<float> panel((end - first) * PANEL);
        for (long p = first; p < end; p++) std::memcpy(&panel[(p - first) * PANEL], y + p * M + j, width * sizeof(float));
        for (long tile = lower ? j / ROWS * ROWS : 0; tile < M; tile += ROWS) {
            const long i = std::min(tile, M - ROWS);  // the last tile overlaps the one before
            const long from = std::max(first, x_shape == LOWER ? i : 0);
            const long to = std::min(end, x_shape == UPPER ? i + ROWS : M);
            Lanes<float>::Register sums[ROWS][2];
            outer(x + from * M + i, M, panel.data() + (from - first) * PANEL, PANEL, std::max(0L, to - from), sums);
            for (long r = 0; r < ROWS; r++)
                std::memcpy(out + (w * M + i + r) * M + j, sums[r], width * sizeof(float));
        }
    });
}
