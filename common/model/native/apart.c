#include "apart.h"

#include <stdlib.h>

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
    part.large = 0;
    part.ids += first;
    part.ordered = shifted(batch->ordered + first, part.rows, first, room);
    part.starts = shifted(batch->starts + from, runs + 1, first, room);
    part.positions += from;
    part.tables += from;
    part.lengths += from;
    part.tails = shifted(batch->tails + from, runs + 1, batch->tails[from], room);
    part.behind += batch->tails[from];
    part.wanted = shifted(batch->wanted + wanted, part.wanted_rows, first, room);
    part.logits += wanted * model->vocab;
    part.states += wanted * model->hidden;
    if (part.likeliest)
        part.likeliest += wanted;
    return part;
}

long apart_words(const Batch *batch, long most)
{
    return batch->runs + batch->rows + 2 * (batch->runs + most) + batch->wanted_rows;
}

long cut_apart(const Model *model, const Batch *batch, long most, Batch *parts, int64_t *room)
{
    int64_t *open = room;
    long count = 0, from = 0, wanted = 0;
    room += batch->runs;
    find_cuts(batch, open);
    while (from < batch->runs) {
        long target = batch->rows * (count + 1) / most, to = batch->runs, end = batch->wanted_rows;
        for (long run = from; run + 1 < batch->runs && count + 1 < most; run++) {
            long rows = batch->starts[run + 1], nearest = batch->starts[to];
            if (!open[run] || labs(rows - target) >= labs(nearest - target))
                continue;
            long before = wanted_before(batch, rows);
            if (before >= 0) {
                to = run + 1;
                end = before;
            }
        }
        parts[count++] = part_of(model, batch, from, to, wanted, end, &room);
        from = to;
        wanted = end;
    }
    return count;
}
