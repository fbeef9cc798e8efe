/* Products of a few rows with a packed matrix.

   Every output is one sum over the inputs in order, whichever rows are computed beside it and
   however the work is cut up; so a row's bits are its own. With int8 weights the inputs of a row
   are rounded to 8 bits, too, by a scale of its own, and the sums are exact. */

#ifndef PACELINE_PRODUCT_H
#define PACELINE_PRODUCT_H

#include "decoder.h"
#include "vector.h"

#define BLOCK 64                /* outputs */
#define VECTORS (BLOCK / LANES) /* of outputs in a block */
#define MOST_ROWS 12            /* of a tile; beyond 6 it has half a block's outputs */
#define AHEAD 16384             /* bytes by which weights are fetched before they are needed */

#define STEPS 127      /* of an 8-bit number, to each side */
#define ZERO 128       /* what stands for 0 in a row of 8-bit numbers, which have no sign */
#define LEAST 1e-30f   /* scale of what is zero all over */

/* Rows to multiply: bfloat16, or 8 bits with a scale for each row. */
typedef struct {
    const void *x;
    const float *scales; /* [rows]; of 8 bits */
    long step;           /* bytes from row to row */
} Rows;

INLINE __m512i dot(int narrow, __m512i acc, __m512i weights, __m512i inputs)
{
    if (narrow)
        return _mm512_dpbusd_epi32(acc, inputs, weights);
    return _mm512_castps_si512(dot_pairs(_mm512_castsi512_ps(acc), weights, inputs));
}

/* y = W x + b, or y += W x + b, of `count` rows and some vectors of a block: with a register for
   every sum, these are few enough for the weights to be read once. */
INLINE void tile(int narrow, int count, int vectors, int from, const Product *product, long block,
                 const Rows *rows, long row, float *y, long y_step, int adds)
{
    long groups = narrow ? (product->in + 3) / 4 : product->in / 2; /* four bytes of a row each */
    long first = block * BLOCK + from * LANES;
    const __m512i *weights = (const __m512i *)product->packed + block * groups * VECTORS + from;
    const char *x = (const char *)rows->x + row * rows->step;
    __m512i acc[MOST_ROWS][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            acc[i][v] = _mm512_setzero_si512();
    for (long group = 0; group < groups; group++, weights += VECTORS) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm_prefetch((const char *)(weights + v) + AHEAD, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int i = 0; i < count; i++) {
            __m512i inputs = _mm512_set1_epi32(*(const int32_t *)(x + i * rows->step + 4 * group));
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                acc[i][v] = dot(narrow, acc[i][v], weights[v], inputs);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            long at = first + v * LANES;
            float *to = y + (row + i) * y_step + at;
            __mmask16 mask = first_lanes(product->out - at);
            __m512 sum = _mm512_castsi512_ps(acc[i][v]);
            if (narrow) {
                __m512i zeros = _mm512_maskz_loadu_epi32(mask, product->sums + at);
                zeros = _mm512_mullo_epi32(zeros, _mm512_set1_epi32(ZERO));
                sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[i][v], zeros));
                sum = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, product->scales + at));
                sum = _mm512_mul_ps(sum, _mm512_set1_ps(rows->scales[row + i]));
            }
            if (product->bias)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, product->bias + at));
            if (adds)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
            _mm512_mask_storeu_ps(to, mask, sum);
        }
}

INLINE void multiply_as(int narrow, const Product *product, long count, const Rows *rows, float *y,
                        long y_step, int adds, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK;
    long tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++)
        for (long t = 0; t < tiles; t++) {
            long row = count * t / tiles;
#define WHOLE(n) \
    case n: tile(narrow, n, 4, 0, product, block, rows, row, y, y_step, adds); break;
#define HALVES(n) \
    case n: \
        tile(narrow, n, 2, 0, product, block, rows, row, y, y_step, adds); \
        tile(narrow, n, 2, 2, product, block, rows, row, y, y_step, adds); \
        break;
            switch (count * (t + 1) / tiles - row) {
                WHOLE(1) WHOLE(2) WHOLE(3) WHOLE(4) WHOLE(5) WHOLE(6)
                HALVES(7) HALVES(8) HALVES(9) HALVES(10) HALVES(11) HALVES(12)
            }
#undef WHOLE
#undef HALVES
        }
}

/* The same of any number of rows, and one part of the outputs out of so many. */
static void multiply(const Product *product, long count, const Rows *rows, float *y, long y_step,
                     int adds, int part, int parts)
{
    if (product->scales)
        multiply_as(1, product, count, rows, y, y_step, adds, part, parts);
    else
        multiply_as(0, product, count, rows, y, y_step, adds, part, parts);
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
