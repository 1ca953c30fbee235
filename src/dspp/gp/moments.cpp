// The hot path (conditional.py) for float32 in few passes over memory, compiled by native.py.
//
// A block of rows goes through everything at once: t², k(x, Z), a = B k and the sums over a, while k stays in L1 or L2.
// Matrices are read in panels of PANEL columns: panel c of P (M, M) holds rows `from` to `to` of P[:, c·PANEL ...],
// without those that are zero for a triangular P. M is a multiple of PANEL; the first `lead` of the M points are
// fillers: their rows and columns of B, m and S − 1 are 0.
//
// Every row takes the same instructions in the same order, and every sum over rows is cut in the same way, so no bit
// depends on the number of threads, or of a row's moments on the rows around it.

#include "common.h"

constexpr long LANES = Lanes<float>::count, PANEL = 2 * LANES;
constexpr long CACHED = 1 << 15;  // numbers of k, or of A, in L2 at a time: 128 KB
typedef Lanes<float>::Register Vector;

static float total(const float* lanes) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

// ---------------------------------------------------------------- kernels

// k(x, Z) of ROWS rows and, if asked for, its slope; t² is clamped where k vanishes, as denormal numbers are slow.
template <class Kind>
static void fill(const float* x, const float* zt, long D, long M, float horizon, float* __restrict k,
                 float* __restrict slope) {
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
    float unused;
    if (slope)
        for (long i = 0; i < ROWS * M; i++) k[i] = Kind::value(k[i] > horizon ? horizon : k[i], slope[i]);
    else
        for (long i = 0; i < ROWS * M; i++) k[i] = Kind::value(k[i] > horizon ? horizon : k[i], unused);
}

using Fill = decltype(&fill<RBF>);
static const Fill KINDS[] = {fill<RBF>, fill<Matern12>, fill<Matern32>, fill<Matern52>};

// ---------------------------------------------------------------- products

// Adds in[:, from .. to] · panel for ROWS rows and halves first .. last of the panel's columns; returns what follows.
template <int first, int last>
__attribute__((always_inline)) static inline const float* add_product(const float* in, long M, long from, long to,
                                                                      const float* panel, Vector (&sums)[ROWS][2]) {
    for (long p = from; p < to; p++, panel += PANEL) {
        Vector half[2];
        for (int h = first; h <= last; h++) half[h] = at(panel + h * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
            for (int h = first; h <= last; h++) sums[r][h] += in[r * M + p] * half[h];
    }
    return panel;
}

// out = in[:, from .. to] · panel, for ROWS rows. Up to `left`, the right half of the panel is 0, and from `right` on the
// left half. (Inlined, GCC 12 moves the sums out of registers.)
__attribute__((noinline)) static void multiply(const float* in, long M, long from, long left, long right, long to,
                                               const float* panel, Vector (&out)[ROWS][2]) {
    Vector sums[ROWS][2] = {};
    panel = add_product<0, 0>(in, M, from, left, panel, sums);
    panel = add_product<0, 1>(in, M, std::max(from, left), right, panel, sums);
    add_product<1, 1>(in, M, std::max(from, right), to, panel, sums);
    std::memcpy(out, sums, sizeof(sums));
}

// out = in[:, 0 .. TILE]ᵀ · panel, over `count` rows.
__attribute__((noinline)) static void multiply_columns(const float* in, long M, long count, const float* panel,
                                                       Vector (&out)[TILE][2]) {
    Vector sums[TILE][2] = {};
    for (long r = 0; r < count; r++, panel += PANEL, in += M) {
        Vector left = at(panel), right = at(panel + LANES);
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++) {
            float value = in[t];
            sums[t][0] += value * left;
            sums[t][1] += value * right;
        }
    }
    std::memcpy(out, sums, sizeof(sums));
}

// ---------------------------------------------------------------- forward

struct Points {  // of W GPs
    long W, D, M, lead, O, B_size;  // O: rows of B, for a step M; B_size: numbers of B's panels per GP
    const float *zt, *B, *S1;       // (W, D, M); panels of Bᵀ (upper); of S − 1, or its diagonal (W, O)
    const float* m;                 // (W, O)
    int kind;
    float horizon;
    int full, triangular;  // S; B

    long panels() const { return O / PANEL; }
    long depth(long c) const { return triangular ? std::min((c + 1) * PANEL, M) : M; }  // panel c of Bᵀ is 0 from here on
};

// A block of ROWS rows, of which `count` exist.
struct Block {
    long count;
    float *k, *A, *H;  // (ROWS, M) each; A and H = A (S − 1) may be null
    float sums[ROWS][2][LANES];
};

// `count` rows of x, to which the last one is added until there are ROWS.
static const float* whole_block(const Points& g, const float* x, long count, std::vector<float>& copy) {
    if (count >= ROWS) return x;
    for (long r = 0; r < ROWS; r++) std::memcpy(&copy[r * g.D], x + std::min(r, count - 1) * g.D, g.D * sizeof(float));
    return copy.data();
}

static void add_a(const Points& g, long w, long c, const float* panel, Block& block) {
    Vector a[ROWS][2];
    const long depth = g.depth(c), left = g.triangular && c * PANEL < g.M ? depth - LANES : depth;
    multiply(block.k, g.M, g.lead, 0, std::max(left, g.lead), depth, panel, a);
    for (int half = 0; half < 2; half++) {
        const long j = c * PANEL + half * LANES;
        Vector weight = at(g.m + w * g.O + j);
        for (int r = 0; r < ROWS; r++) at(block.sums[r][0]) += a[r][half] * weight;
        if (block.A)
            for (int r = 0; r < ROWS; r++) at(block.A + r * g.M + j) = a[r][half];
        if (g.full) continue;
        Vector E = at(g.S1 + w * g.O + j);
        for (int r = 0; r < ROWS; r++) at(block.sums[r][1]) += a[r][half] * a[r][half] * E;
    }
}

static void add_h(const Points& g, long c, const float* panel, Block& block) {
    Vector h[ROWS][2];
    multiply(block.A, g.M, g.lead, 0, g.M, g.M, panel, h);
    for (int half = 0; half < 2; half++) {
        const long j = c * PANEL + half * LANES;
        for (int r = 0; r < ROWS; r++) {
            at(block.sums[r][1]) += h[r][half] * at(block.A + r * g.M + j);
            at(block.H + r * g.M + j) = h[r][half];
        }
    }
}

// Moments of rows first .. end of GP w; A and H (W, R, M) are kept if not null.
static void forward_rows(const Points& g, long w, long R, long first, long end, const float* x, float* A, float* H,
                         float* mean, float* update) {
    const long count = ceil_div(end - first, ROWS), area = ROWS * g.M;
    std::vector<float> buffer(count * area * (g.full ? 3 : A ? 2 : 1)), last(ROWS * g.D);
    std::vector<Block> blocks(count);
    for (long i = 0; i < count; i++) {
        Block& block = blocks[i];
        const long row = first + i * ROWS;
        const float* rows = whole_block(g, x + (w * R + row) * g.D, end - row, last);
        block = Block{std::min(ROWS, end - row), &buffer[i * area], nullptr, nullptr, {}};
        if (A) block.A = &buffer[(count + i) * area];
        if (g.full) block.H = &buffer[(2 * count + i) * area];
        KINDS[g.kind](rows, g.zt + w * g.D * g.M, g.D, g.M, g.horizon, block.k, nullptr);
    }
    const float* panel = g.B + w * g.B_size;
    for (long c = 0; c < g.panels(); panel += (g.depth(c) - g.lead) * PANEL, c++)
        for (Block& block : blocks) add_a(g, w, c, panel, block);
    if (g.full) {
        const long size = (g.M - g.lead) * PANEL;
        for (long c = 0; c < g.panels(); c++)
            for (Block& block : blocks) add_h(g, c, g.S1 + (w * g.panels() + c) * size, block);
    }
    for (long i = 0; i < count; i++) {
        const Block& block = blocks[i];
        const long row = w * R + first + i * ROWS, bytes = block.count * g.M * sizeof(float);
        for (long r = 0; r < block.count; r++) {
            mean[row + r] = total(block.sums[r][0]);
            update[row + r] = total(block.sums[r][1]);
        }
        if (A) std::memcpy(A + row * g.M, block.A, bytes);
        if (H) std::memcpy(H + row * g.M, block.H, bytes);
    }
}

static long rows_at_a_time(long M) { return std::max(1L, CACHED / (ROWS * M)) * ROWS; }

extern "C" long panel_columns() { return PANEL; }

extern "C" void forward(const Points* g, long R, int threads, const float* x, float* A, float* H,
                        float* mean, float* update) {
    const long step = rows_at_a_time(g->M), tasks = ceil_div(R, step);
    parallel(g->W * tasks, threads, [=](long i) {
        const long w = i / tasks, first = i % tasks * step;
        forward_rows(*g, w, R, first, std::min(R, first + step), x, A, H, mean, update);
    });
}

// ---------------------------------------------------------------- backward

struct Gradients {
    long R, root_size;
    const float *x, *A, *H;               // (W, R, D); (W, R, M) each, H null for a diagonal S
    const float *root, *Bt_m;             // panels of (S − 1) B or, with H, of B (lower triangular); (W, M)
    const float *g_mean, *g_var;          // (W, R)
    float *from_x, *from_z;               // (W, R, D + 1), null if not needed; (W, tasks, D + 1, M)
    float *RR, *dm;                       // (W, M, M), without upper triangle for a diagonal S; (W, M)
};

// dLoss/dt² of a panel for ROWS rows, and its products with [z, 1] and [x, 1].
static void add_slopes(const Points& g, const Gradients& o, long w, long row, long count, long c, const float* panel,
                       const float* s, const float* slope, const float* x1, float* from_x, float* from_z) {
    const long M = g.M, E = g.D + 1;
    Vector d[ROWS][2];
    multiply(s, M, std::max(c * PANEL, g.lead), c * PANEL + LANES, M, M, panel, d);
    for (int half = 0; half < 2; half++) {
        const long j = c * PANEL + half * LANES;
        Vector Bt_m = at(o.Bt_m + w * M + j);
        for (int r = 0; r < ROWS; r++) {
            const long there = w * o.R + row + std::min<long>(r, count - 1);
            d[r][half] = (d[r][half] + o.g_mean[there] * Bt_m) * at(slope + r * M + j);
        }
        for (long e = 0; e < E; e++) {
            Vector sum = at(from_z + e * M + j);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) sum += x1[r * E + e] * d[r][half];
            at(from_z + e * M + j) = sum;
        }
        if (!o.from_x) continue;
        for (long e = 0; e < E; e++) {
            Vector z = e < g.D ? at(g.zt + (w * g.D + e) * M + j) : Vector{} + 1;
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) at(from_x + (r * E + e) * LANES) += d[r][half] * z;
        }
    }
}

static void slope_rows(const Points& g, const Gradients& o, long w, long first, long end, float* from_z) {
    const long M = g.M, E = g.D + 1, count = ceil_div(end - first, ROWS);
    std::vector<float> s(count * ROWS * M), k(ROWS * M), slope(count * ROWS * M), last(ROWS * g.D), x1(count * ROWS * E), from_x(o.from_x ? count * ROWS * E * LANES : 0);
    const float* source = o.H ? o.H : o.A;
    for (long r = 0; r < end - first; r++) {
        const long there = w * o.R + first + r;
        for (long j = 0; j < M; j++) s[r * M + j] = 2 * o.g_var[there] * source[there * M + j];
        std::memcpy(&x1[r * E], o.x + there * g.D, g.D * sizeof(float));
        x1[r * E + g.D] = 1;  // and 0 for the rows that fill the last block
    }
    for (long i = 0; i < count; i++) {  // cheaper than to keep the slope from the forward pass in memory
        const float* rows = whole_block(g, o.x + (w * o.R + first + i * ROWS) * g.D, end - first - i * ROWS, last);
        KINDS[g.kind](rows, g.zt + w * g.D * M, g.D, M, g.horizon, k.data(), &slope[i * ROWS * M]);
    }
    const float* panel = o.root + w * o.root_size;
    for (long c = 0; c < g.panels(); c++) {
        for (long i = 0; i < count; i++)
            add_slopes(g, o, w, first + i * ROWS, std::min(ROWS, end - first - i * ROWS), c, panel, &s[i * ROWS * M],
                       &slope[i * ROWS * M], &x1[i * ROWS * E], from_x.data() + i * ROWS * E * LANES, from_z);
        panel += (M - std::max(c * PANEL, g.lead)) * PANEL;
    }
    if (o.from_x)
        for (long i = 0; i < (end - first) * E; i++) o.from_x[(w * o.R + first) * E + i] = total(&from_x[i * LANES]);
}

// Columns of panel c of R = Aᵀ diag(2 gv) A, from the diagonal on, and of A gμ.
static void gram_panel(const Points& g, const Gradients& o, long w, long c) {
    const long M = g.M, step = std::max(1L, CACHED / M);
    std::vector<float> scaled(step * PANEL);
    float* RR = o.RR + w * M * M;
    Vector dm[2] = {};
    for (long i = c * PANEL; i < M; i++) std::fill_n(RR + i * M + c * PANEL, PANEL, 0.0f);
    for (long first = 0; first < o.R; first += step) {
        const long count = std::min(step, o.R - first);
        const float* A = o.A + (w * o.R + first) * M;
        for (long r = 0; r < count; r++)
            for (int half = 0; half < 2; half++) {
                Vector a = at(A + r * M + c * PANEL + half * LANES);
                dm[half] += o.g_mean[w * o.R + first + r] * a;
                at(&scaled[r * PANEL + half * LANES]) = 2 * o.g_var[w * o.R + first + r] * a;
            }
        for (long i = c * PANEL; i < M; i += TILE) {
            Vector sums[TILE][2];
            multiply_columns(A + i, M, count, scaled.data(), sums);
            for (int t = 0; t < TILE; t++)
                for (int half = 0; half < 2; half++) at(RR + (i + t) * M + c * PANEL + half * LANES) += sums[t][half];
        }
    }
    for (int half = 0; half < 2; half++) at(o.dm + w * M + c * PANEL + half * LANES) = dm[half];
    if (g.full)
        for (long i = (c + 1) * PANEL; i < M; i++)
            for (long j = c * PANEL; j < (c + 1) * PANEL; j++) RR[j * M + i] = RR[i * M + j];
}

extern "C" long backward_tasks(long M, long R) { return ceil_div(R, rows_at_a_time(M)); }

extern "C" void backward(const Points* g, const Gradients* o, int threads) {
    const long step = rows_at_a_time(g->M), tasks = ceil_div(o->R, step), panels = g->panels();
    parallel(g->W * (tasks + panels), threads, [=](long i) {
        if (i < g->W * panels) {
            gram_panel(*g, *o, i % g->W, i / g->W);  // the longest first
            return;
        }
        i -= g->W * panels;
        const long w = i / tasks, first = i % tasks * step;
        slope_rows(*g, *o, w, first, std::min(o->R, first + step), o->from_z + i * (g->D + 1) * g->M);
    });
}
