// What moments.cpp and algebra.cpp share: registers, threads and kernels.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512F__)
constexpr long BYTES = 64, ROWS = 12, TILE = 8;  // of a register; 2 · ROWS sums are kept in registers
#elif defined(__AVX__)
constexpr long BYTES = 32, ROWS = 6, TILE = 4;
#else
constexpr long BYTES = 16, ROWS = 6, TILE = 4;
#endif

template <class T>
struct Lanes {
    static constexpr long count = BYTES / sizeof(T);
    typedef T Register __attribute__((vector_size(BYTES)));
    typedef T Memory __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
};

template <class T>
static inline const typename Lanes<T>::Memory& at(const T* p) {
    return *reinterpret_cast<const typename Lanes<T>::Memory*>(p);
}
template <class T>
static inline typename Lanes<T>::Memory& at(T* p) {
    return *reinterpret_cast<typename Lanes<T>::Memory*>(p);
}

static inline long ceil_div(long a, long b) { return (a + b - 1) / b; }

extern "C" void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);  // torch's own pool

// Calls task(i) for all i, in any order, on torch's threads.
template <class Task>
static void parallel(long count, int threads, const Task& task) {
    struct Shared {
        const Task& task;
        std::atomic<long> next;
        long count;
    } shared{task, {0}, count};
    auto work = [](void* data) {
        auto& all = *static_cast<Shared*>(data);
        for (long i; (i = all.next++) < all.count;) all.task(i);
    };
    if (threads > 1 && count > 1)
        GOMP_parallel(work, &shared, threads, 0);
    else
        work(&shared);
}

// 2^y for −126 ≤ y ≤ 0: the nearest integer n goes to the exponent, and a Taylor series does the rest, with an error of
// 5e-9 in float and 4e-18 in double, before rounding.
template <class T>
static inline T power_of_2(T y) {
    constexpr bool single = sizeof(T) == 4;
    using Bits = std::conditional_t<single, uint32_t, uint64_t>;
    constexpr int digits = single ? 23 : 52, degree = single ? 7 : 13;
    constexpr T shift = T(1.5) * T(Bits(1) << digits);  // the sum has no bits left for a fraction
    constexpr auto series = [] {
        struct {
            double of[degree + 1];  // (log 2)^n / n!
        } c{{1.0}};
        for (int n = 1; n <= degree; n++) c.of[n] = c.of[n - 1] * 0.69314718055994530942 / n;
        return c;
    }();
    T shifted = y + shift, f = y - (shifted - shift), p = T(series.of[degree]);
#pragma GCC unroll 16
    for (int n = degree - 1; n >= 0; n--) p = p * f + T(series.of[n]);
    Bits n, bits;
    std::memcpy(&n, &shifted, sizeof(T));
    std::memcpy(&bits, &p, sizeof(T));
    bits += n << digits;
    std::memcpy(&p, &bits, sizeof(T));
    return p;
}

constexpr double LOG2_E = 1.4426950408889634;

// The kinds of kernels.py, in the order of kernels.COMPILED: k(t²), and its slope as in `KernelKind.fill`.
struct RBF {
    template <class T>
    static T value(T t2, T& slope) {
        return slope = power_of_2(T(-0.5 * LOG2_E) * t2);
    }
};
struct Matern12 {
    template <class T>
    static T value(T t2, T& slope) {
        T t = std::sqrt(t2), e = power_of_2(T(-LOG2_E) * t);
        slope = t2 <= 0 ? 0 : e / t;
        return e;
    }
};
struct Matern32 {
    template <class T>
    static T value(T t2, T& slope) {
        T t = std::sqrt(t2);
        slope = power_of_2(T(-LOG2_E) * t);
        return (1 + t) * slope;
    }
};
struct Matern52 {
    template <class T>
    static T value(T t2, T& slope) {
        T t = std::sqrt(t2), e = power_of_2(T(-LOG2_E) * t);
        slope = (1 + t) * e;
        return slope + t2 * T(1.0 / 3) * e;
    }
};
