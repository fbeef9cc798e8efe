/* Products of a few rows with a packed matrix.

   Every output is one sum over the inputs in a set order, whichever rows are computed beside it and
   however the work is cut up; so a row's bits are its own. With int8 weights the inputs of a row
   are rounded to 8 bits, too, by a scale of its own, and the sums are exact. */

#ifndef PACELINE_PRODUCT_H
#define PACELINE_PRODUCT_H

#include "by_vectors.h"
#include "tiles.h"
#include "workers.h"

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

/* Rows of a task that one matrix multiplies. */
typedef struct {
    const Product *by;
    long first, count;
} Group;

/* A task for threads: products of rows, all by weights of one kind. */
typedef struct {
    const Group *groups;
    long group_count;
    const Number *from;           /* [rows, from_step] */
    float *to;                    /* [rows, to_step] */
    long from_step, to_step;
    int adds;                     /* whether to what is there */
    int tiled;
    char *laid;                   /* rows that are laid out, [rows, laid_step] */
    float *scales;                /* theirs, [rows] */
    char *rooms;                  /* [threads, room_step] */
    long laid_step, room_step;
} Products;

static void lay_rows(void *what, Part part)
{
    const Products *all = what;
    long at = 0;
    for (const Group *group = all->groups; group < all->groups + all->group_count; group++) {
        long first = group->first;
        for (long t = 0; t < row_tiles(group->count); t++)
            if (at++ % part.count == part.index)
                lay_tile(group->by->scales != NULL, group->by->in,
                         all->from + first * all->from_step, all->from_step, group->count, t,
                         all->laid + first * all->laid_step, all->scales + first);
    }
}

static void multiply_rows(void *what, Part part)
{
    const Products *all = what;
    for (const Group *group = all->groups; group < all->groups + all->group_count; group++) {
        long first = group->first;
        Rows rows = rows_of(group->by->scales != NULL, group->by->in,
                            all->from + first * all->from_step, all->from_step,
                            all->laid + first * all->laid_step, all->scales + first);
        multiply(all->tiled, group->by, group->count, &rows, all->to + first * all->to_step,
                 all->to_step, all->adds, all->rooms + part.thread * all->room_step, part.index,
                 part.count);
    }
}

/* Has threads do it. */
static void run_products(Workers *workers, int threads, Products *all)
{
    if (laid_out(all->groups->by->scales != NULL))
        workers_run(workers, threads, lay_rows, all);
    workers_run(workers, threads, multiply_rows, all);
}

#endif
