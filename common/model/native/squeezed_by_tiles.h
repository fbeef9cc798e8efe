/* Products of a few rows with squeezed weights: the bits of `by_tiles.h`, with less to read.

   While a slab is multiplied the next one is unpacked, into room that the first cache holds. Up to
   sixteen rows are multiplied with all four vectors of a slab. Up to 32 have two tiles: they are
   multiplied with two of the vectors in a sweep over a block, and with the other two in another. */

#ifndef PACELINE_SQUEEZED_BY_TILES_H
#define PACELINE_SQUEEZED_BY_TILES_H

#include <string.h>

#include "by_tiles.h"
#include "squeezed.h"

#define MOST_SWEPT (2 * TILE_ROWS)

/* Tiles beside the four of sums. */
#define INPUTS_ONE 4
#define INPUTS_TWO 5
#define EVEN_WEIGHTS 6
#define ODD_WEIGHTS 7

/* A block and the rows it is multiplied with. */
typedef struct {
    const Product *product;
    long block;
    const char *x;       /* the rows, `step` bytes from one to the next */
    long step, one, two; /* one, two: rows of the first tile, and of the second */
    const char *filled;  /* theirs for the last slab, filled up; NULL where `x` has all of it */
} Sweep;

/* Shapes tiles for rows of two tiles; of one where the second has none. */
AMX static void shape_swept(long one, long two)
{
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        int second = two && (tile == 2 || tile == 3 || tile == INPUTS_TWO);
        shapes.bytes[tile] = TILE_LINE;
        shapes.rows[tile] = tile >= EVEN_WEIGHTS ? TILE_GROUPS : second ? two : one;
    }
    _tile_loadconfig(&shapes);
}

/* Fetches into the second cache what is not wanted soon. */
INLINE void fetch_early(const char *from, int lines)
{
    for (int line = 0; line < lines; line++)
        _mm_prefetch(from + line * CACHE_LINE, _MM_HINT_T1);
}

/* Fetches a quarter of the slab some slabs ahead, unpacks a quarter of the next one, and multiplies
   with a vector. */
#define ADD_QUARTER(vector, weights) \
    fetch_lines(next + (SLABS_AHEAD - 1) * SQUEEZED_BYTES + vector * SQUEEZED_BYTES / 4, \
                SQUEEZED_BYTES / CACHE_LINE / 4); \
    if (more) \
        unpack(next, vector * 4, 4, 1, 1, upper, to); \
    _tile_loadd(weights, here + vector * CACHE_LINE, GROUP_LINE); \
    _tile_dpbf16ps(vector, INPUTS_ONE, weights);

/* The sums of up to sixteen rows. */
AMX static void sweep_one(const Sweep *sweep, __m512i (*out)[VECTORS])
{
    char room[2][SLAB_BYTES] __attribute__((aligned(CACHE_LINE)));
    const Product *product = sweep->product;
    long slabs = slabs_of(product);
    const char *next = squeezed_slab(product, sweep->block, 0);
    __m512i upper = upper_of(product);
    unpack(next, 0, SLAB_GROUPS, 1, 1, upper, room[0]);
    set_strays(product, sweep->block, 0, room[0]);
    CLEAR_SUMS
    for (long slab = 0; slab < slabs; slab++) {
        int more = slab + 1 < slabs, filled = !more && sweep->filled;
        const char *here = room[slab % 2];
        char *to = room[(slab + 1) % 2];
        next += SQUEEZED_BYTES;
        _tile_loadd(INPUTS_ONE, filled ? sweep->filled : sweep->x + slab * TILE_LINE,
                    filled ? TILE_LINE : sweep->step);
        ADD_QUARTER(0, EVEN_WEIGHTS)
        ADD_QUARTER(1, ODD_WEIGHTS)
        ADD_QUARTER(2, EVEN_WEIGHTS)
        ADD_QUARTER(3, ODD_WEIGHTS)
        if (more)
            set_strays(product, sweep->block, slab + 1, to);
    }
    STORE_SUMS
}

/* The sums of up to 32 rows, of the first two vectors or the others. */
AMX INLINE void sweep_half(const Sweep *sweep, int others, __m512i (*out)[VECTORS])
{
    char room[2][SLAB_BYTES] __attribute__((aligned(CACHE_LINE)));
    const Product *product = sweep->product;
    long slabs = slabs_of(product);
    const char *next = squeezed_slab(product, sweep->block, 0);
    /* The first sweep over a block reads it to the end, and each fetches half of one: so what is
       fetched is half a block ahead. */
    const char *coming = next + (1 + others) * slabs * SQUEEZED_BYTES / 2;
    __m512i upper = upper_of(product);
    unpack(next, 0, SLAB_GROUPS, !others, others, upper, room[0]);
    set_strays(product, sweep->block, 0, room[0]);
    CLEAR_SUMS
    for (long slab = 0; slab < slabs; slab++) {
        int more = slab + 1 < slabs, filled = !more && sweep->filled;
        const char *here = room[slab % 2] + 2 * others * CACHE_LINE;
        const char *x = filled ? sweep->filled : sweep->x + slab * TILE_LINE;
        long step = filled ? TILE_LINE : sweep->step;
        char *to = room[(slab + 1) % 2];
        next += SQUEEZED_BYTES;
        fetch_early(coming + SLABS_AHEAD * SQUEEZED_BYTES, SQUEEZED_BYTES / CACHE_LINE / 2);
        coming += SQUEEZED_BYTES / 2;
        _tile_loadd(INPUTS_ONE, x, step);
        _tile_loadd(INPUTS_TWO, x + sweep->one * step, step);
        if (more)
            unpack(next, 0, SLAB_GROUPS / 2, !others, others, upper, to);
        _tile_loadd(EVEN_WEIGHTS, here, GROUP_LINE);
        _tile_dpbf16ps(0, INPUTS_ONE, EVEN_WEIGHTS);
        _tile_dpbf16ps(2, INPUTS_TWO, EVEN_WEIGHTS);
        if (more)
            unpack(next, SLAB_GROUPS / 2, SLAB_GROUPS / 2, !others, others, upper, to);
        _tile_loadd(ODD_WEIGHTS, here + CACHE_LINE, GROUP_LINE);
        _tile_dpbf16ps(1, INPUTS_ONE, ODD_WEIGHTS);
        _tile_dpbf16ps(3, INPUTS_TWO, ODD_WEIGHTS);
        if (more)
            set_strays(product, sweep->block, slab + 1, to);
    }
    _tile_stored(0, out[0] + 2 * others, GROUP_LINE);
    _tile_stored(1, out[0] + 2 * others + 1, GROUP_LINE);
    _tile_stored(2, out[sweep->one] + 2 * others, GROUP_LINE);
    _tile_stored(3, out[sweep->one] + 2 * others + 1, GROUP_LINE);
}

/* y = W x + b, or y += W x + b; up to 32 rows, one part of the outputs out of so many. */
AMX static void multiply_squeezed(const Product *product, long count, const Rows *rows, float *y,
                                  long y_step, int adds, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK, slabs = slabs_of(product);
    long rest = product->in % SLAB_INPUTS * (long)sizeof(bf16);
    char filled[MOST_SWEPT][TILE_LINE] = {0};
    __m512i sums[MOST_SWEPT][VECTORS];
    Sweep sweep = {.product = product, .x = rows->x, .step = rows->step};
    sweep.two = count > TILE_ROWS ? count / 2 : 0;
    sweep.one = count - sweep.two;
    for (long i = 0; rest && i < count; i++)
        memcpy(filled[i], sweep.x + i * rows->step + (slabs - 1) * TILE_LINE, rest);
    if (rest)
        sweep.filled = filled[0];
    shape_swept(sweep.one, sweep.two);
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++) {
        sweep.block = block;
        if (sweep.two) {
            sweep_half(&sweep, 0, sums);
            sweep_half(&sweep, 1, sums);
        } else {
            sweep_one(&sweep, sums);
        }
        put_rows(0, count, VECTORS, sums, product, block * BLOCK, rows, 0, y, y_step, adds);
    }
    _tile_release(); /* or every switch to another thread would save them */
}

#endif
