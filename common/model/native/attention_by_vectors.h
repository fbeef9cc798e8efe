/* Attention by vectors: what every processor that runs this has. */

#ifndef PACELINE_ATTENTION_BY_VECTORS_H
#define PACELINE_ATTENTION_BY_VECTORS_H

#include "attention.h"

#define HEADS_TOGETHER (REGISTERS / 4) /* whose scores, and values, are summed together */

#define GATHERED (2 * LANES) /* numbers of a value whose sums are in registers */

#ifdef WIDE

/* Adds the weighted values of some positions to sums, one position at a time. */
INLINE void weigh(int heads, const Number *weights, long weights_step, const Number *values,
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
INLINE void weigh(int heads, const Number *weights, long weights_step, const Number *values,
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
            Pairs both = every_pair(weights + head * weights_step + at);
            acc[head][0] = dot_pairs(acc[head][0], left, both);
            acc[head][1] = dot_pairs(acc[head][1], right, both);
        }
    }
}

#endif

/* Weighted sums of values for `heads` queries, two vectors wide. */
INLINE void gather(int heads, const Number *weights, long weights_step, const float *totals,
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

/* Scores of a block's keys with `heads` queries, or what another part of their size adds to them. */
INLINE void score(int heads, const Pairs turned[LANES], const Number *query, long query_step,
                  long width, float *scores, long step, int adds)
{
    Floats sums[HEADS_TOGETHER];
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
        sums[head] = adds ? load_all(scores + head * step) : every(0.0f);
#define ADD_PAIRS(count) \
    for (int pair = 0; pair < (count); pair++) \
        _Pragma("GCC unroll 8") for (int head = 0; head < heads; head++) \
            sums[head] = dot_pairs(sums[head], turned[pair], \
                                   every_pair(query + head * query_step + TOGETHER * pair));
    if (width == NUMBERS)
#pragma GCC unroll 16
        ADD_PAIRS(LANES)
    else
        ADD_PAIRS(width / TOGETHER)
#undef ADD_PAIRS
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
        store_all(scores + head * step, sums[head]);
}

/* Scores of one block of positions, for every row that sees some of it. */
static void score_block(const Model *model, const Layer *layer, long kv_head,
                        const Stretch *stretch, long block, const Number *queries, float *scores,
                        long step)
{
    long size = model->size, slot_step = model->kv_heads * 2 * size;
    long heads = model->heads / model->kv_heads;
    const Number *keys = layer->cache + kv_head * 2 * size;
    for (long d = 0; d < size; d += NUMBERS) {
        Pairs turned[LANES];
        long width = size - d < NUMBERS ? size - d : NUMBERS, held = -1;
        Halves mask = first_halves(width);
        for (long i = 0; i < stretch->count; i++) {
            long position = stretch->positions[i];
            if (position < block || first_seen(layer, position) >= block + LANES)
                continue;
            if (held < 0 || !alike(stretch, held, i, block)) {
                Ints raw[LANES];
                load_turned(keys + d, stretch->tables[i] + block, stretch->lengths[i] - block,
                            slot_step, mask, raw);
#pragma GCC unroll 16
                for (int pair = 0; pair < LANES; pair++)
                    turned[pair] = pairs_of(raw[pair]);
            }
            held = i;
            long first = stretch->rows[i] * model->heads + kv_head * heads;
            const Number *query = queries + first * size;
            float *line = scores + i * heads * step + block;
            for (long head = 0; head < heads; head += HEADS_TOGETHER)
#define SCORE(n) \
    case n: \
        score(n, turned, query + head * size + d, size, width, line + head * step, step, d > 0); \
        break;
                switch (heads - head < HEADS_TOGETHER ? heads - head : HEADS_TOGETHER) {
                    SCORE(1) SCORE(2) SCORE(3) SCORE(4)
#if HEADS_TOGETHER > 4
                    SCORE(5) SCORE(6) SCORE(7) SCORE(8)
#endif
                }
#undef SCORE
        }
    }
}

/* What the query heads of one key/value head see in some rows.

   queries: [rows, heads, size]; out: [rows, out_step]; the row's heads stand side by side. */
static void attend_by_vectors(const Model *model, const Layer *layer, long kv_head,
                              const Stretch *stretch, const Number *queries, Number *out,
                              long out_step, const Desk *desk)
{
    long size = model->size, slot_step = model->kv_heads * 2 * size;
    long heads = model->heads / model->kv_heads, first_head = kv_head * heads;
    const Number *values = layer->cache + kv_head * 2 * size + size;
    float *scores = desk->scores;
    Number *weights = desk->weights;
    long nearest, last;
    extent(layer, stretch, &nearest, &last);
    long step = (last / LANES + 1) * LANES;
    if (kv_head == 0)
        fetch(model, layer, stretch, 1);
    for (long block = nearest / LANES * LANES; block <= last; block += LANES)
        score_block(model, layer, kv_head, stretch, block, queries, scores, step);
    for (long i = 0; i < stretch->count; i++) {
        long seen = stretch->positions[i] + 1, from = first_seen(layer, stretch->positions[i]);
        for (long first = 0; first < heads; first += HEADS_TOGETHER) {
            int together = heads - first < HEADS_TOGETHER ? heads - first : HEADS_TOGETHER;
            float totals[HEADS_TOGETHER];
            for (int head = 0; head < together; head++)
                totals[head] = soften(scores + (i * heads + first + head) * step, model->scale,
                                      from, seen, weights + head * step);
            Number *to = out + stretch->rows[i] * out_step + (first_head + first) * size;
            for (long d = 0; d < size; d += GATHERED)
#define GATHER(n) \
    case n: \
        gather(n, weights, step, totals, values + d, stretch->tables[i], from, seen, slot_step, \
               to + d, size, size - d); \
        break;
                switch (together) {
                    GATHER(1) GATHER(2) GATHER(3) GATHER(4)
#if HEADS_TOGETHER > 4
                    GATHER(5) GATHER(6) GATHER(7) GATHER(8)
#endif
                }
#undef GATHER
        }
    }
}

#endif
