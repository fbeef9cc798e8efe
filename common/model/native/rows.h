/* What products read and make: rows, packed weights, and outputs from sums. */

#ifndef PACELINE_ROWS_H
#define PACELINE_ROWS_H

#include "decoder.h"
#include "vector.h"

#define BLOCK 64                /* outputs */
#define VECTORS (BLOCK / LANES) /* of outputs in a block */
#define GROUP_LINE (BLOCK * 4)  /* bytes of a group's weights */

#define MOST_ROWS (SUMS_AT_ONCE / SUMS_A_ROW) /* of which so many have their sums in registers */

#define STEPS 127    /* of an 8-bit number, to each side */
#define ZERO 128     /* what stands for 0 in a row of 8-bit numbers, which have no sign */
#define LEAST 1e-30f /* scale of what is zero all over */

/* Rows to multiply: numbers, or 8 bits with a scale for each row.

   Where sides are multiplied by themselves, they are laid out as a tile of rows reads them: of each
   group the sides of every row, in four bytes each. */
typedef struct {
    const void *x;
    const float *scales; /* [rows]; of 8 bits */
    long step;           /* bytes of a row */
} Rows;

/* Groups of inputs: four bytes of a row each. */
INLINE long groups_in(int narrow, long inputs)
{
    return narrow ? (inputs + 3) / 4 : inputs / TOGETHER;
}

INLINE long groups_of(int narrow, const Product *product)
{
    return groups_in(narrow, product->in);
}

/* Rows are multiplied in tiles of up to so many. */
INLINE long row_tiles(long count)
{
    return (count + MOST_ROWS - 1) / MOST_ROWS;
}

/* What a vector of sums needs to become outputs, whichever row they are of. */
typedef struct {
    Lanes mask;
    Ints sums;           /* of 8-bit weights */
    Floats scales, bias; /* the former of 8-bit weights, 0 without the latter */
    int biased;
} Outputs;

INLINE Outputs outputs_from(int narrow, const Product *product, long at)
{
    Outputs found = {.mask = first_lanes(product->out - at), .biased = product->bias != NULL};
    if (narrow) {
        found.sums = load_ints(found.mask, product->sums + at);
        found.scales = load(found.mask, product->scales + at);
    }
    if (found.biased)
        found.bias = load(found.mask, product->bias + at);
    return found;
}

/* Makes outputs of a row from a vector of its sums, and stores or adds them; scale: of the row,
   where it is of 8 bits. */
INLINE void put(int narrow, Ints sums, const Outputs *by, float scale, float *to, int adds)
{
    Floats sum = as_floats(sums);
    if (narrow)
        sum = reduced(sums, ZERO, by->sums) * by->scales * every(scale);
    if (by->biased)
        sum = sum + by->bias;
    if (adds)
        sum = sum + load(by->mask, to);
    store(to, by->mask, sum);
}

/* The same of `count` rows, and of the first `vectors` from an output on. */
INLINE void put_rows(int narrow, long count, int vectors, const Ints (*sums)[VECTORS],
                     const Product *product, long at, const Rows *rows, long row, float *y,
                     long y_step, int adds)
{
    const float *scales = rows->scales;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        const Outputs by = outputs_from(narrow, product, at + v * LANES);
#pragma GCC unroll 8
        for (long i = 0; i < count; i++)
            put(narrow, sums[i][v], &by, narrow ? scales[row + i] : 1.0f,
                y + (row + i) * y_step + at + v * LANES, adds);
    }
}

/* Bytes of a row of 8-bit numbers. */
INLINE long narrow_step(long inputs)
{
    return (inputs + LANES - 1) / LANES * LANES;
}

/* Whether rows are laid out for products, which else read them as they are. */
INLINE int laid_out(int narrow)
{
    return narrow || SIDES > 1;
}

/* Bytes of a row that is laid out. */
INLINE long laid_bytes(int narrow, long inputs)
{
    return SIDES > 1 ? groups_in(narrow, inputs) * SIDES * 4 : narrow_step(inputs);
}

/* Rounds a row to 8 bits; returns its scale. */
static float narrowed(const Number *x, long inputs, uint8_t *out)
{
    Floats top = every(0.0f);
    for (long at = 0; at < inputs; at += LANES)
        top = larger_of(top, without_sign(load_number(x + at, first_lanes(inputs - at))));
    float scale = largest_of(top);
    scale = (scale > LEAST ? scale : LEAST) * (1.0f / STEPS);
    for (long at = 0; at < inputs; at += LANES) {
        Floats steps = load_number(x + at, first_lanes(inputs - at)) / every(scale);
        store_bytes(out + at, steps + every(ZERO + 0.5f)); /* conversion cuts off */
    }
    return scale;
}

/* Lays a row out, at a place of a tile of so many; returns its scale. */
static float lay_row(int narrow, long inputs, const Number *from, long place, long count,
                     char *tile)
{
#if SIDES == 1
    return narrowed(from, inputs, (uint8_t *)tile + place * narrow_step(inputs));
#else
    uint8_t rounded[narrow_step(inputs)];
    float scale = narrow ? narrowed(from, inputs, rounded) : 1.0f;
    const uint32_t *fours = (const uint32_t *)(narrow ? (const void *)rounded : from);
    uint32_t *to = (uint32_t *)tile + place * SIDES;
    for (long group = 0; group < groups_in(narrow, inputs); group++, to += count * SIDES) {
        to[0] = narrow ? fours[group] & 0xff00ff : fours[group] << 16;
        to[1] = narrow ? fours[group] >> 8 & 0xff00ff : fours[group] & 0xffff0000;
    }
    return scale;
#endif
}

/* Lays a tile of rows out: see `Rows`. */
static void lay_tile(int narrow, long inputs, const Number *from, long from_step, long count,
                     long t, char *to, float *scales)
{
    long row = count * t / row_tiles(count), end = count * (t + 1) / row_tiles(count);
    char *tile = to + row * laid_bytes(narrow, inputs);
    for (long i = row; i < end; i++)
        scales[i] = lay_row(narrow, inputs, from + i * from_step, i - row, end - row, tile);
}

/* Rows as products read them: laid out, where that was needed. */
INLINE Rows rows_of(int narrow, long inputs, const Number *from, long from_step, const char *laid,
                    const float *scales)
{
    if (laid_out(narrow))
        return (Rows){laid, scales, laid_bytes(narrow, inputs)};
    return (Rows){from, NULL, from_step * (long)sizeof(Number)};
}

#endif
