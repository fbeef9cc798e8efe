/* Products of a few rows with a packed matrix.

   Every output is one sum over the inputs in a set order, whichever rows are computed beside it and
   however the work is cut up; so a row's bits are its own. With int8 weights the inputs of a row
   are rounded to 8 bits, too, by a scale of its own, and the sums are exact. */

#ifndef PACELINE_PRODUCT_H
#define PACELINE_PRODUCT_H

#include "by_vectors.h"
#include "tiles.h"

/* y = W x + b, or y += W x + b, of any number of rows; one part of the outputs out of so many.

   room: as much as `room_for` says. */
static void multiply(int tiled, const Product *product, long count, const Rows *rows, float *y,
                     long y_step, int adds, char *room, int part, int parts)
{
    int narrow = product->scales != NULL;
    if (tiled && !(narrow && count <= FEW_NARROW_ROWS))
        multiply_tiled(narrow, product, count, rows, y, y_step, adds, room, part, parts);
    else
        multiply_by_vectors(narrow, product, count, rows, y, y_step, adds, part, parts);
}

#endif
