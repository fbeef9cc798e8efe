/* What a batch names, and whether it is there: see `decoder.h`. */

#include "decoder.h"

Batch batch_of(const Request *request)
{
    const int64_t *words = request->words;
    Batch batch = {.rows = words[0], .wanted_rows = words[1], .runs = words[2], .large = words[3],
                   .logits = request->logits, .states = request->states,
                   .features = request->features, .shown = request->shown,
                   .given = request->given, .left = request->left, .drawings = request->drawings};
    batch.ids = words + 4;
    batch.ordered = batch.ids + batch.rows;
    batch.starts = batch.ordered + batch.rows;
    batch.positions = batch.starts + batch.runs + 1;
    batch.tables = (const int64_t *const *)(batch.positions + batch.runs);
    batch.lengths = batch.positions + 2 * batch.runs;
    batch.tails = batch.lengths + batch.runs;
    batch.behind = batch.tails + batch.runs + 1;
    batch.wanted = batch.behind + batch.tails[batch.runs];
    batch.chosen = request->words + (batch.wanted - words) + batch.wanted_rows;
    return batch;
}

int64_t slot_of(const Batch *batch, long run, long position)
{
    long further = position - batch->lengths[run];
    return further < 0 ? batch->tables[run][position] : batch->behind[batch->tails[run] + further];
}

long tail_of(const Batch *batch, long run)
{
    return batch->tails[run + 1] - batch->tails[run];
}

/* Whether all that a run names is there. */
static int run_in_range(const Model *model, const Batch *batch, long run)
{
    long start = batch->starts[run], count = batch->starts[run + 1] - start;
    long first = batch->positions[run], end = first + count;
    if (first < 0 || end > model->positions || end > batch->lengths[run] + tail_of(batch, run))
        return 0;
    for (long i = 0; i < count; i++) {
        int64_t row = batch->ordered[start + i], slot = slot_of(batch, run, first + i);
        if (row < 0 || row >= batch->rows || slot < 0 || slot >= model->slots)
            return 0;
    }
    return 1;
}

/* Whether all that a batch names is there. */
int in_range(const Model *model, const Batch *batch)
{
    for (long row = 0; row < batch->rows; row++)
        if (batch->ids[row] < 0 || batch->ids[row] >= model->vocab)
            return 0;
    if (batch->starts[0] != 0 || batch->starts[batch->runs] != batch->rows)
        return 0;
    if (batch->wanted_rows > batch->rows) /* they take the room of rows */
        return 0;
    for (long run = 0; run < batch->runs; run++)
        if (!run_in_range(model, batch, run))
            return 0;
    for (long i = 0; i < batch->wanted_rows; i++)
        if (batch->wanted[i] < 0 || batch->wanted[i] >= batch->rows)
            return 0;
    return 1;
}
