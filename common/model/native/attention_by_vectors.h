/* Attention by vectors: what every processor that runs this has. */

#ifndef PACELINE_ATTENTION_BY_VECTORS_H
#define PACELINE_ATTENTION_BY_VECTORS_H

#include <limits.h>

#include "attention.h"

#define GATHERED (2 * LANES) /* numbers of a value whose sums are in registers */

/* What attention comes to: what some rows see with the query heads of a key/value head. */
typedef struct {
    const Stretch *stretch;
    long kv_head;
    long begin, last; /* positions: of the first block that any row sees, and the last one */
} View;

INLINE View view_of(const Layer *layer, const Stretch *stretch, long kv_head)
{
    View view = {.stretch = stretch, .kv_head = kv_head};
    extent(layer, stretch, &view.begin, &view.last);
    view.begin -= view.begin % LANES;
    return view;
}

/* Query heads of a key/value head that are worked on together: as many of them each time. */
INLINE long heads_together(long heads)
{
    long times = (heads + HEADS_TOGETHER - 1) / HEADS_TOGETHER;
    return (heads + times - 1) / times;
}

#ifdef WIDE

/* Adds the weighted values of some positions to sums, one position at a time. */
INLINE void weigh(int heads, const Factor *weights, long weights_step, const Number *values,
                  const int64_t *slots, long from, long count, long slot_step, long width,
                  Floats acc[HEADS_TOGETHER][2])
{
    Lanes first = first_lanes(width), second = first_lanes(width - LANES);
    for (long at = from; at < count; at++) {
        const Number *value = values + slots[at] * slot_step;
        Floats left = load(first, value), right = load(second, value + LANES);
#pragma GCC unroll 8
        for (int head = 0; head < heads; head++) {
            Floats weight = every(weights[head * weights_step + at]);
            acc[head][0] = fmadd(left, weight, acc[head][0]);
            acc[head][1] = fmadd(right, weight, acc[head][1]);
        }
    }
}

#else

/* Adds the weighted values of some positions to sums, two positions at a time. */
INLINE void weigh(int heads, const Factor *weights, long weights_step, const Number *values,
                  const int64_t *slots, long from, long count, long slot_step, long width,
                  Floats acc[HEADS_TOGETHER][2])
{
    Halves mask = first_halves(width);
    for (long at = from / 2 * 2; at < count; at += 2) { /* what is not seen has no weight */
        long here = slots[at < from ? at + 1 : at], next = slots[at + 1 < count ? at + 1 : at];
        Ints one = load_halves(mask, values + here * slot_step);
        Ints two = load_halves(mask, values + next * slot_step), first, second;
        interleave(one, two, &first, &second);
        Pairs left = pairs_of(first), right = pairs_of(second);
#pragma GCC unroll 8
        for (int head = 0; head < heads; head++) {
            Pairs both = every_factor(weights + head * weights_step + at);
            acc[head][0] = dot_pairs(acc[head][0], left, both);
            acc[head][1] = dot_pairs(acc[head][1], right, both);
        }
    }
}

#endif

/* Weighted sums of values for `heads` queries, two vectors wide. */
INLINE void gather(int heads, const Factor *weights, long weights_step, const float *totals,
                   const Number *values, const int64_t *slots, long from, long count,
                   long slot_step, Number *out, long out_step, long width)
{
    Floats acc[HEADS_TOGETHER][2];
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
        acc[head][0] = acc[head][1] = every(0.0f);
    weigh(heads, weights, weights_step, values, slots, from, count, slot_step, width, acc);
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++) {
        Floats total = every(totals[head]);
        store_number(out + head * out_step, first_lanes(width), acc[head][0] / total);
        store_number(out + head * out_step + LANES, first_lanes(width - LANES),
                   acc[head][1] / total);
    }
}

/* Whether two rows find the same keys in a whole block. */
INLINE int alike(const Stretch *stretch, long one, long other, long block)
{
    const int64_t *a = stretch->tables[one] + block, *b = stretch->tables[other] + block;
    long one_ends = stretch->lengths[one] - block, other_ends = stretch->lengths[other] - block;
    if (one_ends != other_ends && (one_ends < LANES || other_ends < LANES))
        return 0; /* a block past the end of a table repeats the last key there */
    long count = one_ends < LANES ? one_ends : LANES;
    return a == b || !memcmp(a, b, count * sizeof *a);
}

/* Scores of the keys of some blocks with `heads` queries. */
INLINE void score(int heads, int blocks, const Pairs *turned, long pairs, const Factor *query,
                  long query_step, float *scores, long step)
{
    Floats sums[HEADS_TOGETHER][BLOCKS_TOGETHER];
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++)
            sums[head][b] = every(0.0f);
#pragma GCC unroll 4
    for (long pair = 0; pair < pairs; pair++)
#pragma GCC unroll 8
        for (int head = 0; head < heads; head++) {
            Pairs both = every_factor(query + head * query_step + TOGETHER * pair);
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++)
                sums[head][b] = dot_pairs(sums[head][b], turned[pair * blocks + b], both);
        }
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
#pragma GCC unroll 2
        for (int b = 0; b < blocks; b++)
            store_all(scores + head * step + b * LANES, sums[head][b]);
}

/* Turns the keys of some blocks that a row sees: [pairs, blocks]. */
INLINE void turn_blocks(int blocks, const Number *keys, long size, const int64_t *slots,
                        long count, long slot_step, Pairs *turned)
{
    for (int b = 0; b < blocks; b++)
        for (long d = 0; d < size; d += NUMBERS) {
            Ints raw[LANES];
            load_turned(keys + d, slots + b * LANES, count - b * LANES, slot_step,
                        first_halves(size - d), raw);
#pragma GCC unroll 16
            for (int pair = 0; pair < LANES; pair++)
                turned[(d / TOGETHER + pair) * blocks + b] = pairs_of(raw[pair]);
        }
}

/* Scores of some blocks of positions, for every row that sees some of them; of several blocks only
   where no row ends before the last position. */
INLINE void score_blocks(int blocks, const Model *model, const Layer *layer, long kv_head,
                         const Stretch *stretch, long block, const Desk *desk, long step)
{
    long size = layer->size, slot_step = slot_size(layer), held = -1;
    long heads = model->heads / layer->kv_heads, together = heads_together(heads);
    const Number *keys = layer->cache + kv_head * 2 * size;
    for (long i = 0; i < stretch->count; i++) {
        long position = stretch->positions[i], end = block + blocks * LANES;
        if (position < block || first_seen(layer, position) >= end)
            continue;
        int known = held >= 0;
        for (int b = 0; b < blocks; b++)
            known = known && alike(stretch, held, i, block + b * LANES);
        if (!known)
            turn_blocks(blocks, keys, size, stretch->tables[i] + block,
                        stretch->lengths[i] - block, slot_step, desk->pairs);
        held = i;
        const Factor *query = desk->factors + i * heads * size;
        float *line = desk->scores + i * heads * step + block;
        for (long head = 0; head < heads; head += together)
#define SCORE(n) \
    case n: \
        score(n, blocks, desk->pairs, size / TOGETHER, query + head * size, size, \
              line + head * step, step); \
        break;
            switch (heads - head < together ? heads - head : together) {
                SCORE(1) SCORE(2) SCORE(3) SCORE(4) SCORE(5)
#if HEADS_TOGETHER > 5
                SCORE(6) SCORE(7) SCORE(8)
#endif
            }
#undef SCORE
    }
}

/* Has the keys and values of some positions come from afar, into the second cache: the first would
   let those wait that it is asked for meanwhile. Inlined, for the compiler leaves calls of what
   only fetches out. */
INLINE void fetch_some(const Layer *layer, const View *view, long from, long to)
{
    const Stretch *stretch = view->stretch;
    long slot_step = slot_size(layer), size = 2 * layer->size;
    const Number *cache = layer->cache + view->kv_head * size;
    for (long i = 0; i < stretch->count; i++) {
        const int64_t *table = stretch->tables[i], *before = i ? stretch->tables[i - 1] : NULL;
        long position = stretch->positions[i], known = i ? stretch->positions[i - 1] : -1;
        long at = first_seen(layer, position), end = position < to ? position + 1 : to;
        at = at < from ? from : at;
        if (table == before && at <= known)
            at = known + 1;
        for (; at < end; at++) {
            if (at <= known && table[at] == before[at])
                continue;
            const char *keys = (const char *)(cache + table[at] * slot_step);
            for (long byte = 0; byte < size * (long)sizeof *cache; byte += CACHE_LINE)
                _mm_prefetch(keys + byte, _MM_HINT_T1);
        }
    }
}

/* The same for where a view begins. */
INLINE void fetch_first(const Layer *layer, const View *view)
{
    fetch_some(layer, view, view->begin, view->begin + FETCHED_BEFORE);
}

/* Scores of all positions that rows see; has what comes next fetched meanwhile: further positions,
   and those with which the next view begins. */
static void score_all(const Model *model, const Layer *layer, const View *view, const View *next,
                      const Desk *desk, long step)
{
    const Stretch *stretch = view->stretch;
    /* Positions that no row ends before: past the ends of tables `alike` has nothing to compare. */
    long common = LONG_MAX, begin = view->begin, end = step;
    for (long i = 0; i < stretch->count; i++)
        common = stretch->positions[i] < common ? stretch->positions[i] + 1 : common;
    for (long block = begin, past; block < end; block = past) {
        int several = BLOCKS_TOGETHER > 1 && block + BLOCKS_TOGETHER * LANES <= common;
        past = block + (several ? BLOCKS_TOGETHER : 1) * LANES;
        if (FETCHED_BEFORE)
            fetch_some(layer, view, block + FETCHED_BEFORE, past + FETCHED_BEFORE);
        if (FETCHED_BEFORE && next)
            fetch_some(layer, next,
                       next->begin + FETCHED_BEFORE * (block - begin) / (end - begin),
                       next->begin + FETCHED_BEFORE * (past - begin) / (end - begin));
        if (several)
            score_blocks(BLOCKS_TOGETHER, model, layer, view->kv_head, stretch, block, desk, step);
        else
            score_blocks(1, model, layer, view->kv_head, stretch, block, desk, step);
    }
}

/* The queries of a stretch for one key/value head, side by side: [count, heads, size]. */
static void lay_queries(const Model *model, const Layer *layer, long kv_head,
                        const Stretch *stretch, const Number *queries, Factor *to)
{
    long size = model->heads / layer->kv_heads * layer->size;
    for (long i = 0; i < stretch->count; i++, to += size) {
        const Number *from = queries + stretch->rows[i] * model->heads * layer->size;
        for (long at = 0; at < size; at += LANES) {
            Lanes mask = first_lanes(size - at);
            store_factors(to + at, mask, load_number(from + kv_head * size + at, mask));
        }
    }
}

/* What the query heads of one key/value head see in some rows.

   next: what comes after it, or NULL; queries: [rows, heads, size]; out: [rows, out_step]; the
   row's heads stand side by side. */
static void attend_by_vectors(const Model *model, const Layer *layer, const View *view,
                              const View *next, const Number *queries, Number *out, long out_step,
                              const Desk *desk)
{
    const Stretch *stretch = view->stretch;
    long kv_head = view->kv_head;
    long size = layer->size, slot_step = slot_size(layer);
    long heads = model->heads / layer->kv_heads, first_head = kv_head * heads;
    const Number *values = layer->cache + kv_head * 2 * size + size;
    float *scores = desk->scores;
    Factor *weights = desk->weights;
    long together = heads_together(heads), step = (view->last / LANES + 1) * LANES;
    lay_queries(model, layer, kv_head, stretch, queries, desk->factors);
    if (!FETCHED_BEFORE && kv_head == 0)
        fetch(layer, stretch, 1);
    score_all(model, layer, view, next, desk, step);
    for (long i = 0; i < stretch->count; i++) {
        long seen = stretch->positions[i] + 1, from = first_seen(layer, stretch->positions[i]);
        for (long first = 0; first < heads; first += together) {
            int some = heads - first < together ? heads - first : together;
            float totals[HEADS_TOGETHER];
            for (int head = 0; head < some; head++)
                totals[head] = soften(model, scores + (i * heads + first + head) * step,
                                      sink_of(layer, first_head + first + head), from, seen,
                                      weights + head * step);
            Number *to = out + stretch->rows[i] * out_step + (first_head + first) * size;
            for (long d = 0; d < size; d += GATHERED)
#define GATHER(n) \
    case n: \
        gather(n, weights, step, totals, values + d, stretch->tables[i], from, seen, slot_step, \
               to + d, size, size - d); \
        break;
                switch (some) {
                    GATHER(1) GATHER(2) GATHER(3) GATHER(4) GATHER(5)
#if HEADS_TOGETHER > 5
                    GATHER(6) GATHER(7) GATHER(8)
#endif
                }
#undef GATHER
        }
    }
}

#endif
