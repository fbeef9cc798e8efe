/* Tokens drawn with keyed noise, as `common.model.sampling` says what they are. */

#ifndef PACELINE_DRAW_H
#define PACELINE_DRAW_H

#include <stdint.h>

#include "warp.h"

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
