/* A batch as several that need nothing of each other. */

#ifndef PACELINE_APART_H
#define PACELINE_APART_H

#include "decoder.h"

/* Words of room that cutting a batch takes. */
long apart_words(const Batch *batch, long most);

/* Cuts a batch, all of which is in range, into up to `most` of about as many rows each, and returns
   how many; 1 where no two parts of it can run at the same time.

   parts: [most], in the order of the batch's rows; room: `apart_words` that the parts keep. */
long cut_apart(const Model *model, const Batch *batch, long most, Batch *parts, int64_t *room);

#endif
