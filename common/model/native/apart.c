#include "apart.h"

#include <stdlib.h>

#include "vector.h"

/* The largest part may have up to so much more than its share: else all threads are done sooner if
   they share every product. */
#define UNEVEN 7
#define UNEVEN_OF 6

/* Rows from which on computing a part takes longer than reading weights from a cache. */
#define CACHED_ROWS 3

/* Whether a run reads what another writes.

   A run's rows are of one path, and whoever reads one of them reads those before it, too: the slot
   of the first tells. Tables that begin otherwise have nothing in common. */
static int reads(const Batch *batch, long reader, long writer)
{
    long position = batch->positions[writer];
    long end = batch->lengths[reader] + batch->tails[reader + 1] - batch->tails[reader];
    return slot_of(batch, reader, 0) == slot_of(batch, writer, 0) && position < end &&
           slot_of(batch, reader, position) == slot_of(batch, writer, position);
}

/* Finds after which runs a batch may be cut: `open[run]` says so of each but the last. Rows and
   wanted rows have to come in the order of the parts, too. */
static void find_cuts(const Batch *batch, int64_t *open)
{
    for (long run = 0, most = -1; run < batch->runs; run++) {
        for (long at = batch->starts[run]; at < batch->starts[run + 1]; at++)
            most = batch->ordered[at] > most ? batch->ordered[at] : most;
        open[run] = most == batch->starts[run + 1] - 1;
    }
    for (long run = 1; run < batch->runs; run++)
        for (long before = 0; before < run; before++)
            if (reads(batch, run, before) || reads(batch, before, run)) {
                for (long at = before; at < run; at++)
                    open[at] = 0;
                break; /* those between are tied as well */
            }
}

/* How many wanted rows come before a row; -1 where they are not in that order. */
static long wanted_before(const Batch *batch, long row)
{
    long count = 0;
    while (count < batch->wanted_rows && batch->wanted[count] < row)
        count++;
    for (long i = count; i < batch->wanted_rows; i++)
        if (batch->wanted[i] < row)
            return -1;
    return count;
}

/* Numbers less the first of them; moves `room` on. */
static const int64_t *shifted(const int64_t *numbers, long count, int64_t by, int64_t **room)
{
    int64_t *copy = *room;
    for (long i = 0; i < count; i++)
        copy[i] = numbers[i] - by;
    *room += count;
    return copy;
}

/* The part from one run to another, whose wanted rows begin and end as said. */
static Batch part_of(const Model *model, const Batch *batch, long from, long to, long wanted,
                     long wanted_end, int64_t **room)
{
    long first = batch->starts[from], runs = to - from;
    Batch part = *batch;
    part.rows = batch->starts[to] - first;
    part.runs = runs;
    part.wanted_rows = wanted_end - wanted;
    part.ids += first;
    part.ordered = shifted(batch->ordered + first, part.rows, first, room);
    part.starts = shifted(batch->starts + from, runs + 1, first, room);
    part.positions += from;
    part.tables += from;
    part.lengths += from;
    part.tails = shifted(batch->tails + from, runs + 1, batch->tails[from], room);
    part.behind += batch->tails[from];
    part.wanted = shifted(batch->wanted + wanted, part.wanted_rows, first, room);
    part.logits += wanted * model->head.out;
    part.states += wanted * model->hidden;
    if (part.features)
        part.features += first * model->taps * model->hidden;
    if (part.shown)
        part.shown += first * model->shown.in;
    if (part.given)
        part.given += first * model->hidden;
    if (part.left)
        part.left += wanted * model->hidden;
    if (part.drawings)
        part.drawings += wanted;
    if (part.chosen)
        part.chosen += wanted;
    return part;
}

static long bytes_of(const Product *product)
{
    return product->out * product->in * (product->scales ? 1 : (long)sizeof(Number));
}

/* Bytes of the weights that a pass may read. */
static long weight_bytes(const Model *model)
{
    long bytes = bytes_of(&model->head) + bytes_of(&model->shown);
    bytes += bytes_of(&model->per_layer_product);
    for (long i = 0; i < model->layers; i++) {
        const Product *products[LAYER_PRODUCTS];
        products_of(model->layer + i, products);
        for (long each = 0; each < LAYER_PRODUCTS; each++)
            bytes += bytes_of(products[each]);
        const Experts *experts = model->layer[i].experts;
        bytes += experts ? bytes_of(&experts->router) : 0;
        for (long expert = 0; experts && expert < experts->count; expert++)
            bytes += bytes_of(experts->gate_up + expert) + bytes_of(experts->down + expert);
    }
    return bytes;
}

/* Whether parts of a batch are computed sooner apart than together. */
static int pays(const Model *model, const Batch *batch, const Batch *parts, long count,
                int64_t shared_cache)
{
    int cached = weight_bytes(model) <= shared_cache;
    long enough = cached ? CACHED_ROWS : MEMORY_ROWS * count; /* memory brings each part its own */
    for (long i = 0; i < count; i++)
        if (parts[i].rows < enough || parts[i].rows * count * UNEVEN_OF > batch->rows * UNEVEN)
            return 0;
    return 1;
}

long apart_words(const Batch *batch, long count)
{
    return batch->runs + batch->rows + 2 * (batch->runs + count) + batch->wanted_rows;
}

long cut_apart(const Model *model, const Batch *batch, long count, int64_t shared_cache,
               Batch *parts, int64_t *room)
{
    int64_t *open = room;
    long made = 0, from = 0, wanted = 0;
    room += batch->runs;
    find_cuts(batch, open);
    while (from < batch->runs) {
        long share = batch->rows * (made + 1) / count, to = batch->runs, end = batch->wanted_rows;
        for (long run = from; run + 1 < batch->runs && made + 1 < count; run++) {
            long rows = batch->starts[run + 1], nearest = batch->starts[to];
            if (!open[run] || labs(rows - share) >= labs(nearest - share))
                continue;
            long before = wanted_before(batch, rows);
            if (before >= 0) {
                to = run + 1;
                end = before;
            }
        }
        parts[made++] = part_of(model, batch, from, to, wanted, end, &room);
        from = to;
        wanted = end;
    }
    return made == count && pays(model, batch, parts, count, shared_cache) ? count : 1;
}
