/* Attention over a paged cache, for some rows and the query heads of one key/value head.

   A row goes over the keys it sees in order of position, in blocks of positions that are the same
   for every row. What rows and heads share is only the work of reading a block, so what a row comes
   to says nothing of the batch. */

#ifndef PACELINE_ATTENTION_H
#define PACELINE_ATTENTION_H

#include <math.h>
#include <string.h>

#include "decoder.h"
#include "vector.h"

#define ROWS_TOGETHER 8 /* rows for which a block of keys is read once */
#define LINES_AHEAD 32  /* of weights, fetched at a time */

/* Rows that see much of the same, as those of one tree do. */
typedef struct {
    const int64_t *rows;           /* [count] */
    const int64_t *positions;      /* [count] */
    const int64_t *const *tables;  /* [count]: slots of the keys a row may see, by position */
    const int64_t *lengths;        /* [count]: of the tables; longer than the position */
    long agreed;                   /* positions that have the same slots in all of them */
    long count;
} Stretch;

/* As many keys as a vector has lanes, four bytes of each a lane: lane i of vector p has the pair p
   of key i, or its number p where a number takes a lane. */
INLINE void load_turned(const Number *keys, const int64_t *slots, long count, long slot_step,
                        Halves mask, Ints out[LANES])
{
    Ints rows[LANES];
    int64_t some[LANES];
    if (count < LANES) { /* the last one again, for those that are lacking */
        for (int i = 0; i < LANES; i++)
            some[i] = slots[i < count ? i : count - 1];
        slots = some;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        rows[i] = load_halves(mask, keys + slots[i] * slot_step);
    transpose(rows, out);
}

/* Lanes of the positions from `at` on that a row sees. */
INLINE Lanes seen_lanes(long at, long from, long count)
{
    if (at >= from && at + LANES <= count)
        return ALL_LANES;
    return first_lanes(count - at) & ~first_lanes(from - at);
}

/* The sink of a query head, or NULL. */
INLINE const float *sink_of(const Layer *layer, long head)
{
    return layer->sinks ? layer->sinks + head : NULL;
}

/* Scores into weights; returns their sum, with that of a sink, where there is one. Positions before
   `from` are not seen. */
static float soften(const Model *model, float *scores, const float *sink, long from, long count,
                    Factor *weights)
{
    long begin = from / LANES * LANES;
    float scale = model->scale;
    if (model->softcap) {
        capped(scores + begin, scale, model->softcap, count - begin);
        scale = 1.0f;
    }
    Floats most = every(sink ? *sink : -INFINITY), sum = every(0.0f);
    Floats steps = every(scale * 1.44269504088896341f); /* a number of powers of two */
    for (long at = begin; at < count; at += LANES)
        most = larger_where(seen_lanes(at, from, count), load_all(scores + at), most);
    most = every(largest_of(most));
    if (sink)
        sum = only(first_lanes(1), exp2_of((every(*sink) - most) * steps));
    for (long at = begin; at < count; at += LANES) {
        Floats weight = exp2_of((load_all(scores + at) - most) * steps);
        weight = only(seen_lanes(at, from, count), weight);
        store_factors(weights + at, ALL_LANES, weight);
        sum = sum + weight;
    }
    return sum_of(sum);
}

INLINE long first_seen(const Layer *layer, long position)
{
    return layer->window && layer->window <= position ? position + 1 - layer->window : 0;
}

/* Has the keys and values of all heads come that some rows see, from afar.

   By loads in order of address they come faster than by prefetches where the processor itself sees
   from loads what is next: of sixteen texts a pass takes a tenth less (EPYC). */
INLINE void fetch(const Layer *layer, const Stretch *stretch, int by_loads)
{
    long slot_step = slot_size(layer);
    for (long i = 0; i < stretch->count; i++) {
        const int64_t *table = stretch->tables[i], *before = i ? stretch->tables[i - 1] : NULL;
        long position = stretch->positions[i], known = i ? stretch->positions[i - 1] : -1;
        for (long at = first_seen(layer, position); at <= position; at++) {
            if (at <= known && table[at] == before[at])
                continue;
            const char *slot = (const char *)(layer->cache + table[at] * slot_step);
            for (long byte = 0; byte < slot_step * (long)sizeof(Number); byte += CACHE_LINE)
                if (by_loads)
                    (void)*(const volatile char *)(slot + byte);
                else
                    _mm_prefetch(slot + byte, _MM_HINT_T0);
        }
    }
}

/* What products read after attention. */
typedef struct {
    const char *next, *end;
} Ahead;

/* Fetches a little of it, where attention goes by tiles: scores and weights leave memory idle. */
INLINE void fetch_ahead(Ahead *ahead)
{
    for (int i = 0; i < LINES_AHEAD && ahead->next < ahead->end; i++, ahead->next += CACHE_LINE)
        _mm_prefetch(ahead->next, _MM_HINT_T1);
}

/* The first and the last position that any row of a stretch sees. */
INLINE void extent(const Layer *layer, const Stretch *stretch, long *nearest, long *last)
{
    *nearest = INT64_MAX;
    *last = 0;
    for (long i = 0; i < stretch->count; i++) {
        long position = stretch->positions[i], seen = first_seen(layer, position);
        *last = position > *last ? position : *last;
        *nearest = seen < *nearest ? seen : *nearest;
    }
}

/* What attention by tiles does at a time. */
#define SPAN 32                            /* numbers of a query, or positions */
#define SPAN_VALUES (2 * TILE_ROWS * SPAN) /* numbers of a span's values, 32 wide */

/* Numbers from a query's scores to the next one's: whole spans, but not a power of two of them, for
   a tile's rows would then compete for the same places of the cache. */
INLINE long tile_step(long last)
{
    return ((last / SPAN + 1) | 1) * SPAN;
}

/* Room for one thread's attention. */
typedef struct {
    float *scores;   /* of queries over positions */
    Factor *weights; /* the same, softened */
    Factor *factors; /* by vectors only, as the one below: queries */
    Pairs *pairs;    /* keys of some positions */
    Number *queries; /* by tiles only, as the two below */
    Number *values;  /* of some positions, in pairs */
    Ints *turned;    /* keys of some positions */
} Desk;

#endif
