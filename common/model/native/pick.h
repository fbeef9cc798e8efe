/* The largest of many numbers. */

#ifndef PACELINE_PICK_H
#define PACELINE_PICK_H

#include <math.h>

#include "vector.h"

#define BLOCKS 64 /* of a row, at most; only those are looked at again that have lost a number */

/* Lanes from a place on that are before an end and not among those taken. */
INLINE __mmask16 open_lanes(long at, long end, const int64_t *taken, long count)
{
    __mmask16 open = first_lanes(end - at);
    for (long i = 0; i < count; i++)
        if (taken[i] >= at && taken[i] < at + LANES)
            open &= ~(1u << (taken[i] - at));
    return open;
}

/* The largest number of a block but for those taken; -INFINITY where there is none. */
INLINE float largest(const float *row, long from, long end, const int64_t *taken, long count)
{
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (long at = from; at < end; at += LANES) {
        __mmask16 open = open_lanes(at, end, taken, count);
        __m512 values = _mm512_maskz_loadu_ps(open, row + at);
        most = _mm512_mask_max_ps(most, open, values, most); /* the latter where one is NaN */
    }
    return _mm512_reduce_max_ps(most);
}

/* The ids of the largest numbers of a row, the largest first and of equal ones the lower; 0 where
   nothing is left that is larger than anything. */
static void pick(const float *row, long size, long best, int64_t *out)
{
    long step = (size / BLOCKS / LANES + 1) * LANES, count = 0;
    float most[BLOCKS] = {-INFINITY};
    for (long from = 0; from < size; from += step)
        most[count++] = largest(row, from, from + step < size ? from + step : size, out, 0);
    for (long rank = 0; rank < best; rank++) {
        long block = 0;
        for (long i = 1; i < count; i++)
            block = most[i] > most[block] ? i : block;
        long from = block * step, end = from + step < size ? from + step : size;
        out[rank] = 0;
        if (most[block] == -INFINITY)
            continue;
        __mmask16 equal = 0;
        for (long at = from; !equal; at += LANES) {
            __mmask16 open = open_lanes(at, end, out, rank);
            __m512 values = _mm512_maskz_loadu_ps(open, row + at);
            equal = _mm512_mask_cmp_ps_mask(open, values, _mm512_set1_ps(most[block]), _CMP_EQ_OQ);
            out[rank] = at + __builtin_ctz(equal | 1u << LANES);
        }
        most[block] = largest(row, from, end, out, rank + 1);
    }
}

#endif
