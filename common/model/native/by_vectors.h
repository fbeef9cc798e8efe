/* Products by vectors: what every processor that runs this has. */

#ifndef PACELINE_BY_VECTORS_H
#define PACELINE_BY_VECTORS_H

#include "rows.h"

#define LINE_VECTORS (CACHE_LINE / (long)sizeof(Ints))

#define FAR_AHEAD 131072 /* bytes by which weights come into the second cache, */
#define NEAR_AHEAD 4096  /* and from there into the first */

/* Vectors of a block whose sums, of so many rows, are in registers. */
#define AT_ONCE(rows) \
    (VECTORS * (rows) <= SUMS_AT_ONCE ? VECTORS : 4 * (rows) <= SUMS_AT_ONCE ? 4 : 2)

/* A block lies in memory as slices of its outputs, each of which has all groups, so that those read
   by themselves are read in order: every second line, or every fourth, comes half as fast. */
INLINE long slice_vectors(int narrow, const Product *product)
{
    return groups_of(narrow, product) * SLICE;
}

/* Where a vector of a group's weights is, from the first one of some slices. */
INLINE long place(int vector, long slice)
{
    return vector / SLICE * slice + vector % SLICE;
}

/* Fetches a line of weights for later. Where arithmetic takes the time, memory may have to be asked
   long before: the first cache can wait for few lines at a time, the second for many. */
INLINE void fetch_weights(int count, const void *line, long ahead)
{
    if (count <= ASKED_ONCE) {
        _mm_prefetch((const char *)line + ahead, _MM_HINT_T0);
        return;
    }
    _mm_prefetch((const char *)line + FAR_AHEAD, _MM_HINT_T1);
    _mm_prefetch((const char *)line + NEAR_AHEAD, _MM_HINT_T0);
}

/* What a row of a tile has of a group: its bytes, or one of their sides. */
INLINE Ints inputs_of(const char *tile, long step, int count, int row, long group, int side)
{
    if (SIDES > 1)
        return every_int(((const int32_t *)tile)[(group * count + row) * SIDES + side]);
    return every_int(*(const int32_t *)(tile + row * step + 4 * group));
}

/* Adds a side of a group to sums, with what is less in registers: inputs or weights. */
INLINE void add_group(int narrow, int count, int begin, int end, const Ints *weights, long slice,
                      const char *tile, long step, long group, int side,
                      Ints acc[MOST_ROWS][VECTORS])
{
    Ints few[VECTORS];
    if (SIDES > 1 && count < end - begin) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            few[i] = inputs_of(tile, step, count, i, group, side);
#pragma GCC unroll 8
        for (int v = begin; v < end; v++) {
            Ints sided = weights_side(narrow, side, weights[place(v, slice)]);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++)
                acc[i][v] = add_side(narrow, acc[i][v], sided, few[i]);
        }
        return;
    }
    Ints sided[VECTORS];
#pragma GCC unroll 8
    for (int v = begin; v < end; v++)
        sided[v] = weights_side(narrow, side, weights[place(v, slice)]);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        Ints inputs = inputs_of(tile, step, count, i, group, side);
#pragma GCC unroll 8
        for (int v = begin; v < end; v++)
            acc[i][v] = add_side(narrow, acc[i][v], sided[v], inputs);
    }
}

/* y = W x + b, or y += W x + b, of `count` rows and some vectors of a block: with a register for
   every sum, these are few enough for the weights to be read once. */
INLINE void some(int narrow, int count, int vectors, int from, const Product *product, long block,
                 const Rows *rows, long row, float *y, long y_step, int adds)
{
    long groups = groups_of(narrow, product);
    long first = block * BLOCK + from * LANES, slice = slice_vectors(narrow, product);
    const Ints *weights = (const Ints *)product->packed + block * groups * VECTORS;
    weights += place(from, slice);
    /* Slices that are read beside each other are followed by what comes after the last of them. */
    long beside = vectors > SLICE ? (vectors / SLICE - 1) * slice * (long)sizeof(Ints) : 0;
    long soon = AHEAD / (vectors * (long)sizeof(Ints));
    if (beside && soon > groups)
        soon = groups;
    const char *tile = (const char *)rows->x + row * rows->step;
    /* Whether sums leave no register for inputs beside all weights. A row alone whose numbers have
       sides is multiplied with one vector of them after the other. */
    int full = (SIDES == 1 || count > 1) && count * vectors + vectors >= REGISTERS;
    int at_a_time = full ? vectors / 2 : vectors;
    Ints acc[MOST_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            acc[i][v] = every_int(0);
    for (long group = 0; group < groups; group++, weights += SLICE) {
        long ahead = soon * SLICE * (long)sizeof(Ints) + (group + soon < groups ? 0 : beside);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v += LINE_VECTORS)
            fetch_weights(count, weights + place(v, slice), ahead);
#pragma GCC unroll 2
        for (int side = 0; side < SIDES; side++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v += at_a_time) {
                if (v) /* else inputs would stay in registers for this, and sums would not */
                    __asm__("" ::: "memory");
                add_group(narrow, count, v, v + at_a_time, weights, slice, tile, rows->step, group,
                          side, acc);
            }
    }
    put_rows(narrow, count, vectors, acc, product, first, rows, row, y, y_step, adds);
}

/* The same for as many vectors of a block as are computed at once, from one of them on: an int, for
   as a long it takes a register that sums want. */
typedef void Tile(const Product *product, long block, int from, const Rows *rows, long row,
                  float *y, long y_step, int adds);

/* By numbers of rows, each with registers of its own: what is inlined into one function has rows'
   addresses in vectors, and they come from there by the ports that multiply. */
#define TILE(narrow, n) \
    static __attribute__((noinline)) void tile_##narrow##_##n( \
        const Product *product, long block, int from, const Rows *rows, long row, float *y, \
        long y_step, int adds) \
    { \
        some(narrow, n, AT_ONCE(n), from, product, block, rows, row, y, y_step, adds); \
    }
#define TILES(n) TILE(0, n) TILE(1, n)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5)
#if MOST_ROWS == 7
TILES(6) TILES(7)
#define MANY(narrow) , tile_##narrow##_6, tile_##narrow##_7
#elif MOST_ROWS == 6
TILES(6)
#define MANY(narrow) , tile_##narrow##_6
#else
#error "there are tiles of up to six rows, and of up to seven"
#endif
#define ALL(narrow) \
    {tile_##narrow##_1, tile_##narrow##_2, tile_##narrow##_3, tile_##narrow##_4, \
     tile_##narrow##_5 MANY(narrow)}
static Tile *const TILES_OF[2][MOST_ROWS] = {ALL(0), ALL(1)};
#undef TILE
#undef TILES
#undef MANY
#undef ALL

/* The same of any number of rows, and one part of the outputs out of so many. Where a block takes
   several steps a part may end within it: of few blocks one more is much, and all wait for whom it
   falls to. */
static void multiply_by_vectors(int narrow, const Product *product, long count, const Rows *rows,
                                float *y, long y_step, int adds, int part, int parts)
{
    if (!count)
        return;
    long tiles = row_tiles(count), step = AT_ONCE(count / tiles); /* of those with fewest rows */
    long steps = (product->out + step * LANES - 1) / (step * LANES);
    long at = steps * part / parts * step, end = steps * (part + 1) / parts * step;
    for (; at < end; at += step)
        for (long row = 0, next, t = 1; row < count; row = next, t++) {
            next = count * t / tiles;
            Tile *tile = TILES_OF[narrow][next - row - 1];
            for (long from = at; from < at + step; from += AT_ONCE(next - row))
                tile(product, at / VECTORS, from % VECTORS, rows, row, y, y_step, adds);
        }
}

#endif
