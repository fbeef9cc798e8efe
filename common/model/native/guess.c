/* What heads guess by their logits, and how likely it is. */

#include "guess.h"

#include <float.h>
#include <math.h>

#include "pick.h"
#include "vector.h"

/* `finite_of`, for one logit. */
static float finite_logit(float logit)
{
    return fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);
}

/* The chances of tokens by a row of logits, which a bias or a penalty may have made infinite. */
static void weigh(const float *logits, long size, long best, const int64_t *ids, float *chances)
{
    float most = finite_logit(logits[ids[0]]);
    Floats sum = every(0.0f);
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        sum = sum + only(mask, exp_of(finite_of(load(mask, logits + at)) - every(most)));
    }
    float total = sum_of(sum);
    for (long rank = 0; rank < best; rank++)
        chances[rank] = expf(finite_logit(logits[ids[rank]]) - most) / total;
}

/* Those of tokens that were drawn, by their scores: at most as sharply as without noise, for what
   guesses are wrong by grows with scores where a temperature is low. */
static void weigh_drawn(const double *scores, long best, const int64_t *ids, double temperature,
                        float *chances)
{
    float total = 0;
    for (long rank = 0; rank < best; rank++) {
        double gap = (scores[0] - scores[rank]) * (temperature < 1 ? temperature : 1);
        chances[rank] = ids[rank] < 0 ? 0 : expf((float)-gap);
        total += chances[rank];
    }
    for (long rank = 0; rank < best; rank++)
        chances[rank] /= total;
}

/* Logits of all of the target's tokens, by those of the tokens that a head can guess. */
static const float *spread(const float *logits, long size, const int64_t *ids, long vocab,
                           float *room)
{
    for (long id = 0; id < vocab; id++)
        room[id] = -INFINITY;
    for (long at = 0; at < size; at++)
        room[ids[at]] = logits[at];
    return room;
}

void guess(const Model *model, const int64_t *of, const Drawing *drawing, long best,
           const float *logits, int64_t *ids, float *chances, double *scores, float *room)
{
    long size = model->head.out;
    int drawn = drawing && drawing->temperature > 0, changed = drawing && drawing->adjusting;
    if (of && (drawn || changed)) {
        logits = spread(logits, size, of, model->vocab, room + 2 * model->vocab);
        size = model->vocab;
        of = NULL;
    }
    if (!drawn) {
        if (changed)
            logits = adjusted(drawing->adjusting, logits, size, room);
        pick(logits, size, best, ids);
        weigh(logits, size, best, ids, chances);
        for (long rank = 0; of && rank < best; rank++)
            ids[rank] = of[ids[rank]];
        return;
    }
    if (draw(logits, size, drawing, best, ids, scores, room))
        weigh_drawn(scores, best, ids, drawing->temperature, chances);
    else
        for (long rank = 0; rank < best; rank++)
            ids[rank] = -1;
}

void decoder_top(const float *logits, long rows, long size, long best, int64_t *ids, float *chances)
{
    for (long row = 0; row < rows; row++, logits += size, ids += best, chances += best) {
        pick(logits, size, best, ids);
        weigh(logits, size, best, ids, chances);
    }
}
