/* The largest of many numbers. */

#ifndef PACELINE_PICK_H
#define PACELINE_PICK_H

#include <math.h>

#include "vector.h"

/* The ids of the largest numbers of a row, the largest first and of equal ones the lower. */
static void pick(const float *row, long size, long best, int64_t *out)
{
    for (long rank = 0; rank < best; rank++) {
        __m512 most = _mm512_set1_ps(-INFINITY);
        __m512i where = _mm512_set1_epi32(INT32_MAX);
        __m512i ids = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (long at = 0; at < size; at += LANES) {
            __mmask16 open = first_lanes(size - at);
            for (long before = 0; before < rank; before++)
                open &= ~_mm512_cmpeq_epi32_mask(ids, _mm512_set1_epi32((int32_t)out[before]));
            __m512 values = _mm512_maskz_loadu_ps(open, row + at);
            __mmask16 larger = _mm512_mask_cmp_ps_mask(open, values, most, _CMP_GT_OQ);
            most = _mm512_mask_mov_ps(most, larger, values);
            where = _mm512_mask_mov_epi32(where, larger, ids);
            ids = _mm512_add_epi32(ids, _mm512_set1_epi32(LANES));
        }
        __mmask16 equal = _mm512_cmp_ps_mask(most, _mm512_set1_ps(_mm512_reduce_max_ps(most)),
                                             _CMP_EQ_OQ);
        int32_t id = _mm512_mask_reduce_min_epi32(equal, where);
        out[rank] = id < size ? id : 0; /* nothing is larger than anything where all is NaN */
    }
}

#endif
