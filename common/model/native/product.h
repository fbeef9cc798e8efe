/* Products of a few rows with a packed matrix.

   Every output is one sum over the inputs in a set order, whichever rows are computed beside it and
   however the work is cut up; so a row's bits are its own. With int8 weights the inputs of a row
   are rounded to 8 bits, too, by a scale of its own, and the sums are exact. */

#ifndef PACELINE_PRODUCT_H
#define PACELINE_PRODUCT_H

#include "by_tiles.h"
#include "by_vectors.h"
#include "squeezed_by_tiles.h"

/* Bytes of room that a product of so many rows takes. */
static long room_for(const Product *product, long count)
{
    return count > MOST_SWEPT ? unpacked_bytes(product) : 0;
}

/* y = W x + b, or y += W x + b, of any number of rows; one part of the outputs out of so many.

   room: as much as `room_for` says. */
static void multiply(int tiled, const Product *product, long count, const Rows *rows, float *y,
                     long y_step, int adds, char *room, int part, int parts)
{
    int narrow = product->scales != NULL, squeezed = product->stray_starts != NULL;
    if (!count) /* tiles have a row at least */
        return;
    if (squeezed && count <= MOST_SWEPT)
        multiply_squeezed(product, count, rows, y, y_step, adds, part, parts);
    else if (squeezed || (tiled && count > (narrow ? FEW_NARROW_ROWS : FEW_ROWS)))
        multiply_by_tiles(narrow, product, count, rows, y, y_step, adds, room, part, parts);
    else if (tiled && !narrow)
        multiply_few(product, count, rows, y, y_step, adds, part, parts);
    else if (narrow)
        multiply_by_vectors(1, product, count, rows, y, y_step, adds, part, parts);
    else
        multiply_by_vectors(0, product, count, rows, y, y_step, adds, part, parts);
}

#endif
