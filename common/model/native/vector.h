/* Vectors of the processor's width, and functions of them.

   Every function rounds one way whatever stands in the other lanes, and nothing here is left to
   the compiler's choice of contraction (-ffp-contract=off): the bits are those of this source, and
   of the width it is compiled for. */

#ifndef PACELINE_VECTOR_H
#define PACELINE_VECTOR_H

#include <float.h>
#include <immintrin.h>
#include <stdint.h>

#include "number.h"

#define CACHE_LINE 64
#define TILE_ROWS 16 /* of a tile register, where there are such */
#define AHEAD 16384  /* bytes by which weights are fetched before they are needed */

#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512BF16__
#include "avx512.h"
#else
#include "avx2.h"
#endif
#ifdef WIDE
#include "wide.h"
#endif

#define NUMBERS (TOGETHER * LANES) /* of a vector */

/* Lanes below a count. */
INLINE Lanes first_lanes(long count)
{
    return count >= LANES ? ALL_LANES : (Lanes)((1u << (count > 0 ? count : 0)) - 1);
}

/* Numbers below a count, of a vector of them. */
INLINE Halves first_halves(long count)
{
    return count >= NUMBERS ? ALL_HALVES : (Halves)((1u << count) - 1);
}

/* NaN becomes the least number there is, and an infinite one the nearest. */
INLINE Floats finite_of(Floats x)
{
    return smaller_of(larger_of(x, every(-FLT_MAX)), every(FLT_MAX));
}

/* 2^x to about one unit in the last place, for x of 0 or less; next to nothing far below. */
INLINE Floats exp2_of(Floats x)
{
    Floats n = nearest_whole(x), r = x - n;
    Floats p = every(1.32647e-3f);
    p = fmadd(p, r, every(9.67151e-3f));
    p = fmadd(p, r, every(5.550734e-2f));
    p = fmadd(p, r, every(2.4022242e-1f));
    p = fmadd(p, r, every(6.9314698e-1f));
    p = fmadd(p, r, every(1.0f));
    return times_power(p, n);
}

/* exp(x) to about one unit in the last place; next to nothing far below. */
INLINE Floats exp_of(Floats x)
{
    x = larger_of(smaller_of(x, every(88.0f)), every(-104.0f));
    Floats n = nearest_whole(x * every(1.44269504088896341f));
    Floats r = fnmadd(n, every(0.693359375f), x);
    r = fnmadd(n, every(-2.12194440e-4f), r);
    Floats p = every(1.9875691500e-4f);
    p = fmadd(p, r, every(1.3981999507e-3f));
    p = fmadd(p, r, every(8.3334519073e-3f));
    p = fmadd(p, r, every(4.1665795894e-2f));
    p = fmadd(p, r, every(1.6666665459e-1f));
    p = fmadd(p, r, every(5.0000001201e-1f));
    p = fmadd(p * r, r, r + every(1.0f));
    return times_power(p, n);
}

/* tanh(x) to about one unit in the last place of 1; what is no number stays none. */
INLINE Floats tanh_of(Floats x)
{
    x = larger_of(every(-44.0f), smaller_of(every(44.0f), x));
    Floats power = exp_of(x + x);
    return (power - every(1.0f)) / (power + every(1.0f)) + (x - x);
}

/* Numbers times a scale, in place, become a cap times the tanh of what they are of it. */
INLINE void capped(float *x, float scale, float cap, long size)
{
    Floats part = every(scale / cap), whole = every(cap);
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store(x + at, mask, tanh_of(load(mask, x + at) * part) * whole);
    }
}

#endif
