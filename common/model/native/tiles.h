/* What goes by the processor's tiles (AMX). Where vectors are not AVX-512's, there are none. */

#ifndef PACELINE_TILES_H
#define PACELINE_TILES_H

#include "attention.h"
#include "rows.h"

#define FEW_NARROW_ROWS 2 /* of 8-bit numbers, that are faster by vectors, with the same sums */

#if defined(__AVX512BF16__) && !defined(WIDE)

#include "attention_by_tiles.h"
#include "squeezed_by_tiles.h"

/* Bytes of room that a product of so many rows takes. */
static long room_for(const Product *product, long count)
{
    return count > MOST_SWEPT ? unpacked_bytes(product) : 0;
}

/* y = W x + b, or y += W x + b, of any number of rows; see `multiply`. */
static void multiply_tiled(int narrow, const Product *product, long count, const Rows *rows,
                           float *y, long y_step, int adds, char *room, int part, int parts)
{
    int squeezed = product->stray_starts != NULL;
    if (!count) /* tiles have a row at least */
        return;
    if (squeezed && count <= MOST_SWEPT)
        multiply_squeezed(product, count, rows, y, y_step, adds, part, parts);
    else if (narrow || squeezed || count > FEW_ROWS)
        multiply_by_tiles(narrow, product, count, rows, y, y_step, adds, room, part, parts);
    else
        multiply_few(product, count, rows, y, y_step, adds, part, parts);
}

#else

static int tiles_work(void)
{
    return 0;
}

static long room_for(const Product *product, long count)
{
    return 0;
}

static void multiply_tiled(int narrow, const Product *product, long count, const Rows *rows,
                           float *y, long y_step, int adds, char *room, int part, int parts)
{
    __builtin_unreachable();
}

static void attend_by_tiles(const Model *model, const Layer *layer, long kv_head,
                            const Stretch *stretch, const Number *queries, Number *out,
                            long out_step, const Desk *desk, Ahead *ahead)
{
    __builtin_unreachable();
}

#endif

#endif
