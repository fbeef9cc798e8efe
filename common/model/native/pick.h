/* The largest of many numbers. */

#ifndef PACELINE_PICK_H
#define PACELINE_PICK_H

#include <math.h>

#include "vector.h"

#define BLOCKS 64 /* of a row, at most; only those are looked at again that have lost a number */

/* Lanes from a place on that are before an end and not among those taken. */
INLINE Lanes open_lanes(long at, long end, const int64_t *taken, long count)
{
    Lanes open = first_lanes(end - at);
    for (long i = 0; i < count; i++)
        if (taken[i] >= at && taken[i] < at + LANES)
            open &= ~(1u << (taken[i] - at));
    return open;
}

/* The largest number of a block but for those taken; -INFINITY where there is none. */
INLINE float largest(const float *row, long from, long end, const int64_t *taken, long count)
{
    Floats most = every(-INFINITY);
    for (long at = from; at < end; at += LANES) {
        Lanes open = open_lanes(at, end, taken, count);
        most = larger_where(open, load(open, row + at), most); /* the latter where one is NaN */
    }
    return largest_of(most);
}

/* The ids of the largest numbers of a row, the largest first and of equal ones the lower; 0 where
   nothing is left that is larger than anything. */
static inline void pick(const float *row, long size, long best, int64_t *out)
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
        Lanes equal = 0;
        for (long at = from; !equal; at += LANES) {
            Lanes open = open_lanes(at, end, out, rank);
            equal = equal_where(open, load(open, row + at), every(most[block]));
            out[rank] = at + __builtin_ctz(equal | 1u << LANES);
        }
        most[block] = largest(row, from, end, out, rank + 1);
    }
}

#endif
