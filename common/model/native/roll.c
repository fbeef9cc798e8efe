/* The likeliest tokens of rows, and several passes in one call that follow them. */

#include <math.h>
#include <poll.h>
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
                   .states = batch->states};
}

/* Finds the likeliest tokens of every row, and how far their logits are behind the largest. */
static void rank(const Batch *batch, long vocab, long best, int64_t *chosen, float *behind)
{
    for (long i = 0; i < batch->wanted_rows; i++, chosen += best, behind += best) {
        const float *logits = batch->logits + i * vocab;
        pick(logits, vocab, best, chosen);
        for (long place = 0; place < best; place++)
            behind[place] = logits[chosen[0]] - logits[chosen[place]];
    }
}

/* Whether something can be read from a descriptor. */
static int has_news(int descriptor)
{
    struct pollfd asked = {.fd = descriptor, .events = POLLIN};
    return descriptor >= 0 && poll(&asked, 1, 0) > 0;
}

int decoder_roll(Decoder *decoder, const Model *model, const Batch *batch, int news, long best,
                 const int64_t *slots, int64_t *chosen, float *behind, long *levels)
{
    long rows = batch->wanted_rows, longest = 0, most = *levels;
    Batch first = *batch;
    first.likeliest = NULL; /* they are ranked below */
    int status = decoder_run(decoder, model, &first);
    if (status)
        return status;
    for (long i = 0; i < rows; i++)
        if (batch->positions[batch->wanted[i]] + 1 + most > longest)
            longest = batch->positions[batch->wanted[i]] + 1 + most;
    int64_t *words = malloc((rows * (longest + 6) + 1) * sizeof *words);
    if (!words)
        return OUT_OF_MEMORY;
    Batch next = continued(batch, most, slots, longest, words);
    for (*levels = 0; !status; ++*levels) {
        long done = *levels * rows;
        rank(batch, model->head.out, best, chosen + done * best, behind + done * best);
        if (*levels == most || has_news(news))
            break;
        for (long i = 0; i < rows; i++) {
            words[i] = chosen[(done + i) * best];
            words[rows + i]++;
            words[2 * rows + i] = slots[done + i];
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
