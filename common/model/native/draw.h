/* Tokens drawn with keyed noise, as `common.model.sampling` says what they are. */

#ifndef PACELINE_DRAW_H
#define PACELINE_DRAW_H

#include <stdint.h>

/* What changes a row's logits before all else: biases, and then a repetition penalty. */
typedef struct {
    const int64_t *ids;  /* [count]: whose logits have something added */
    const float *biases; /* [count]: what */
    int64_t count;
    const uint8_t *seen; /* [vocab]: whether an id occurs before the path; NULL where nothing is
                            penalised */
    int64_t vocab;
    int64_t *path; /* [steps]: ids after those, with room for all that a roll chooses */
    int64_t steps;
    float penalty;
} Adjusting;

/* How one token is drawn. */
typedef struct {
    uint64_t seed;
    int64_t position, top_k;
    double temperature, top_p, min_p;
    const Adjusting *adjusting; /* or NULL */
} Drawing;

/* A row's logits, adjusted. x: [size], where they are written. */
const float *adjusted(const Adjusting *how, const float *logits, long size, float *x);

/* Draws a token for each row of logits: those with the best scores, the best first and of equal
   ones the lower; a score is the adjusted logit over the temperature, and noise; at a temperature of
   0 that logit.

   Where what was summed or is nearly equal here may be otherwise there, or at a temperature of 0 a
   logit is no number, the row's first id is -1, and others mean nothing.

   logits: [rows, size]; ids, scores: [rows, best], of the former -1 where no more survive; room:
   [2 * size]. */
void decoder_draw(const float *logits, long rows, long size, const Drawing *drawings, long best,
                  int64_t *ids, double *scores, float *room);

/* The same for one row, logits [size]; whether it is sure of it. */
int draw(const float *logits, long size, const Drawing *how, long best, int64_t *ids,
         double *scores, float *room);

#endif
