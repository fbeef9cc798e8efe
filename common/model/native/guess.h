/* What a drafting head guesses of one row, and how likely that is. */

#ifndef PACELINE_GUESS_H
#define PACELINE_GUESS_H

#include <stdint.h>

#include "decoder.h"

/* Finds the likeliest tokens by a row of the head's logits, or those that come closest to being
   drawn of it.

   of: as in `Guessing`; drawing: NULL where nothing is drawn, as at a temperature of 0; ids,
   chances: [best], an id -1 where no more survive, and all where a draw is not sure; scores:
   [best]; room: [3 * vocab], of all of the target's tokens or the head's, whichever are more. */
void guess(const Model *model, const int64_t *of, const Drawing *drawing, long best,
           const float *logits, int64_t *ids, float *chances, double *scores, float *room);

#endif
