/* Root mean squares of rows in float32, and what products read of them. */

#ifndef PACELINE_NORMS_H
#define PACELINE_NORMS_H

#include <math.h>

#include "number.h"
#include "vector.h"

/* 1 / rms(x). */
static float inverse_rms(const float *x, long size, float epsilon)
{
    Floats squares = every(0.0f);
    for (long at = 0; at < size; at += LANES) {
        Floats part = load(first_lanes(size - at), x + at);
        squares = fmadd(part, part, squares);
    }
    return 1.0f / sqrtf(sum_of(squares) / size + epsilon);
}

/* Numbers of x / rms(x) * weight. */
INLINE Floats normed_lanes(Lanes mask, const float *x, Floats inverse, const float *weight)
{
    return load(mask, x) * inverse * load(mask, weight);
}

/* x / rms(x) * weight. */
static void normed(const float *x, const float *weight, long size, float epsilon, Number *out)
{
    Floats inverse = every(inverse_rms(x, size, epsilon));
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store_number(out + at, mask, normed_lanes(mask, x + at, inverse, weight + at));
    }
}

/* x times a scale as numbers. */
static void rounded(const float *x, float scale, long size, Number *out)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store_number(out + at, mask, load(mask, x + at) * every(scale));
    }
}

#endif
