/* Products of a few rows with a packed matrix.

   Every output is one sum over the inputs in order, whichever rows are computed beside it and
   however the work is cut up; so a row's bits are its own. */

#ifndef PACELINE_PRODUCT_H
#define PACELINE_PRODUCT_H

#include "decoder.h"
#include "vector.h"

#define BLOCK 64                /* outputs */
#define VECTORS (BLOCK / LANES) /* of outputs in a block */
#define MOST_ROWS 12            /* of a tile; beyond 6 it has half a block's outputs */
#define AHEAD 16384              /* bytes by which weights are fetched before they are needed */

/* y = W x + b, or y += W x + b, of `count` rows and some vectors of a block: with a register for
   every sum, these are few enough for the weights to be read once. */
INLINE void tile(int count, int vectors, int from, int fetches, const Product *product, long block,
                 const bf16 *x, long x_step, float *y, long y_step, int adds)
{
    long pairs = product->in / 2, first = block * BLOCK + from * LANES;
    const __m512i *weights = (const __m512i *)product->packed + block * pairs * VECTORS + from;
    __m512 acc[MOST_ROWS][VECTORS];
#pragma GCC unroll 12
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            acc[row][v] = _mm512_setzero_ps();
    for (long pair = 0; pair < pairs; pair++, weights += VECTORS) {
        if (fetches)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                _mm_prefetch((const char *)(weights + v) + AHEAD, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int row = 0; row < count; row++) {
            __m512i both = _mm512_set1_epi32(*(const int32_t *)(x + row * x_step + 2 * pair));
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                acc[row][v] = dot_pairs(acc[row][v], weights[v], both);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            long at = first + v * LANES;
            __mmask16 mask = first_lanes(product->out - at);
            __m512 sum = acc[row][v];
            if (product->bias)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, product->bias + at));
            if (adds)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, y + row * y_step + at));
            _mm512_mask_storeu_ps(y + row * y_step + at, mask, sum);
        }
}

/* The same of any number of rows, and one part of the outputs out of so many. */
static void multiply(const Product *product, long rows, const bf16 *x, long x_step, float *y,
                     long y_step, int adds, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK;
    long tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++)
        for (long t = 0; t < tiles; t++) {
            long row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
            const bf16 *from = x + row * x_step;
            float *to = y + row * y_step;
#define WHOLE(n) \
    case n: tile(n, 4, 0, 1, product, block, from, x_step, to, y_step, adds); break;
#define HALVES(n) \
    case n: \
        tile(n, 2, 0, 1, product, block, from, x_step, to, y_step, adds); \
        tile(n, 2, 2, 1, product, block, from, x_step, to, y_step, adds); \
        break;
            switch (count) {
                WHOLE(1) WHOLE(2) WHOLE(3) WHOLE(4) WHOLE(5) WHOLE(6)
                HALVES(7) HALVES(8) HALVES(9) HALVES(10) HALVES(11) HALVES(12)
            }
#undef WHOLE
#undef HALVES
        }
}

#endif
