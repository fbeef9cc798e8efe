/* The likeliest tokens of rows, and several passes in one call that follow them. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "pick.h"
#include "vector.h"

/* Lays out the batch that continues each wanted row of another by one more, `levels` times.

   words: room for `W (longest + 6) + 1` numbers, W rows wanted and `longest` positions a row. */
static Batch continued(const Batch *batch, long levels, const int64_t *slots, long longest,
                       int64_t *words)
{
    long rows = batch->wanted_rows;
    int64_t *ids = words, *positions = ids + rows, *now = positions + rows;
    int64_t *order = now + rows, *starts = order + rows;
    const int64_t **tables = (const int64_t **)(starts + rows + 1);
    int64_t *places = (int64_t *)(tables + rows);
    for (long i = 0; i < rows; i++) {
        long row = batch->wanted[i], seen = batch->positions[row] + 1;
        const int64_t *table = NULL;
        for (long run = 0; run < batch->runs && !table; run++)
            for (long at = batch->starts[run]; at < batch->starts[run + 1]; at++)
                if (batch->ordered[at] == row)
                    table = batch->tables[run];
        memcpy(places + i * longest, table, seen * sizeof *places);
        for (long level = 0; level < levels; level++)
            places[i * longest + seen + level] = slots[level * rows + i];
        positions[i] = batch->positions[row];
        order[i] = starts[i] = i;
        tables[i] = places + i * longest;
    }
    starts[rows] = rows;
    return (Batch){.rows = rows, .wanted_rows = rows, .runs = rows, .ids = ids,
                   .positions = positions, .slots = now, .ordered = order, .starts = starts,
                   .tables = tables, .wanted = order, .logits = batch->logits,
                   .states = batch->states, .likeliest = batch->likeliest};
}

int decoder_roll(Decoder *decoder, const Model *model, const Batch *batch, long levels, long best,
                 const int64_t *slots, int64_t *chosen)
{
    long rows = batch->wanted_rows, vocab = model->head.out, longest = 0;
    int status = decoder_run(decoder, model, batch);
    if (status)
        return status;
    for (long i = 0; i < rows; i++)
        if (batch->positions[batch->wanted[i]] + 1 + levels > longest)
            longest = batch->positions[batch->wanted[i]] + 1 + levels;
    int64_t *words = malloc((rows * (longest + 6) + 1) * sizeof *words);
    if (!words)
        return OUT_OF_MEMORY;
    Batch next = continued(batch, levels, slots, longest, words);
    for (long level = 0; !status; level++) {
        for (long i = 0; i < rows; i++)
            pick(batch->logits + i * vocab, vocab, best, chosen + (level * rows + i) * best);
        if (level == levels)
            break;
        for (long i = 0; i < rows; i++) {
            words[i] = chosen[(level * rows + i) * best];
            words[rows + i]++;
            words[2 * rows + i] = slots[level * rows + i];
        }
        status = decoder_run(decoder, model, &next);
    }
    free(words);
    return status;
}

void decoder_top(const float *logits, long rows, long size, long best, int64_t *ids, float *chances)
{
    for (long row = 0; row < rows; row++, logits += size, ids += best, chances += best) {
        __m512 sum = _mm512_setzero_ps();
        pick(logits, size, best, ids);
        __m512 most = _mm512_set1_ps(logits[ids[0]]);
        for (long at = 0; at < size; at += LANES) {
            __mmask16 mask = first_lanes(size - at);
            __m512 under = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, logits + at), most);
            sum = _mm512_mask_add_ps(sum, mask, sum, exp_of(under));
        }
        float total = _mm512_reduce_add_ps(sum);
        for (long rank = 0; rank < best; rank++)
            chances[rank] = expf(logits[ids[rank]] - logits[ids[0]]) / total;
    }
}
