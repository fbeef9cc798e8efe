/* A batch as several that need nothing of each other. */

#ifndef PACELINE_APART_H
#define PACELINE_APART_H

#include "decoder.h"

/* Words of room that cutting a batch into so many parts takes. */
long apart_words(const Batch *batch, long count);

/* Cuts a batch, all of which is in range, into so many parts of about as many rows, and returns how
   many; 1 where there are no such parts, or where they had better be computed together: each part
   reads all weights, which come from memory or from a cache of so many bytes.

   parts: [count], in the order of the batch's rows; room: `apart_words` that the parts keep. */
long cut_apart(const Model *model, const Batch *batch, long count, int64_t shared_cache,
               Batch *parts, int64_t *room);

#endif
