/* Products by vectors: what every processor that runs this has. */

#ifndef PACELINE_BY_VECTORS_H
#define PACELINE_BY_VECTORS_H

#include "rows.h"

#define MOST_ROWS 12 /* whose sums are in registers; beyond 6 those of half a block */

INLINE __m512i dot(int narrow, __m512i acc, __m512i weights, __m512i inputs)
{
    if (narrow)
        return _mm512_dpbusd_epi32(acc, inputs, weights);
    return _mm512_castps_si512(dot_pairs(_mm512_castsi512_ps(acc), weights, inputs));
}

/* y = W x + b, or y += W x + b, of `count` rows and some vectors of a block: with a register for
   every sum, these are few enough for the weights to be read once. */
INLINE void some(int narrow, int count, int vectors, int from, const Product *product, long block,
                 const Rows *rows, long row, float *y, long y_step, int adds)
{
    long groups = groups_of(narrow, product);
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
        for (int v = 0; v < vectors; v++)
            put(narrow, acc[i][v], product, first + v * LANES, rows, row + i, y, y_step, adds);
}

/* The same of any number of rows, and one part of the outputs out of so many. */
INLINE void multiply_by_vectors(int narrow, const Product *product, long count, const Rows *rows,
                                float *y, long y_step, int adds, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK;
    long tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++)
        for (long t = 0; t < tiles; t++) {
            long row = count * t / tiles;
#define WHOLE(n) \
    case n: some(narrow, n, 4, 0, product, block, rows, row, y, y_step, adds); break;
#define HALVES(n) \
    case n: \
        some(narrow, n, 2, 0, product, block, rows, row, y, y_step, adds); \
        some(narrow, n, 2, 2, product, block, rows, row, y, y_step, adds); \
        break;
            switch (count * (t + 1) / tiles - row) {
                WHOLE(1) WHOLE(2) WHOLE(3) WHOLE(4) WHOLE(5) WHOLE(6)
                HALVES(7) HALVES(8) HALVES(9) HALVES(10) HALVES(11) HALVES(12)
            }
#undef WHOLE
#undef HALVES
        }
}

#endif
