/* What products read and make: rows, packed weights, and outputs from sums. */

#ifndef PACELINE_ROWS_H
#define PACELINE_ROWS_H

#include "decoder.h"
#include "vector.h"

#define BLOCK 64                /* outputs */
#define VECTORS (BLOCK / LANES) /* of outputs in a block */
#define GROUP_LINE (BLOCK * 4)  /* bytes of a group's weights */

#define STEPS 127    /* of an 8-bit number, to each side */
#define ZERO 128     /* what stands for 0 in a row of 8-bit numbers, which have no sign */
#define LEAST 1e-30f /* scale of what is zero all over */

/* Rows to multiply: bfloat16, or 8 bits with a scale for each row. */
typedef struct {
    const void *x;
    const float *scales; /* [rows]; of 8 bits */
    long step;           /* bytes from row to row */
} Rows;

/* Groups of inputs: four bytes of a row each. */
INLINE long groups_of(int narrow, const Product *product)
{
    return narrow ? (product->in + 3) / 4 : product->in / 2;
}

/* Makes outputs from a vector of sums, and stores or adds them. */
INLINE void put(int narrow, __m512i sums, const Product *product, long at, const Rows *rows,
                long row, float *y, long y_step, int adds)
{
    float *to = y + row * y_step + at;
    __mmask16 mask = first_lanes(product->out - at);
    __m512 sum = _mm512_castsi512_ps(sums);
    if (narrow) {
        __m512i zeros = _mm512_maskz_loadu_epi32(mask, product->sums + at);
        zeros = _mm512_mullo_epi32(zeros, _mm512_set1_epi32(ZERO));
        sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, zeros));
        sum = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, product->scales + at));
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(rows->scales[row]));
    }
    if (product->bias)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, product->bias + at));
    if (adds)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
    _mm512_mask_storeu_ps(to, mask, sum);
}

/* Bytes of a row of 8-bit numbers. */
INLINE long narrow_step(long inputs)
{
    return (inputs + LANES - 1) / LANES * LANES;
}

/* Rounds a row to 8 bits; returns its scale. */
static float narrowed(const bf16 *x, long inputs, uint8_t *out)
{
    __m512 top = _mm512_setzero_ps();
    for (long at = 0; at < inputs; at += LANES)
        top = _mm512_max_ps(top, _mm512_abs_ps(load_bf16(x + at, first_lanes(inputs - at))));
    float scale = _mm512_reduce_max_ps(top);
    scale = (scale > LEAST ? scale : LEAST) * (1.0f / STEPS);
    for (long at = 0; at < inputs; at += LANES) {
        __m512 steps = load_bf16(x + at, first_lanes(inputs - at));
        steps = _mm512_div_ps(steps, _mm512_set1_ps(scale));
        steps = _mm512_add_ps(steps, _mm512_set1_ps(ZERO + 0.5f)); /* conversion cuts off */
        _mm_storeu_si128((__m128i *)(out + at), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(steps)));
    }
    return scale;
}

#endif
