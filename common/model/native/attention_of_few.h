/* Attention for few queries where the processor has tiles: by vectors, with the very sums of tiles.

   Of a score the even and the odd numbers of each 32 are summed by themselves, and then both added
   to the sum; of values the even and the odd positions of each 32. */

#ifndef PACELINE_ATTENTION_OF_FEW_H
#define PACELINE_ATTENTION_OF_FEW_H

#include <pmmintrin.h>

#include "attention.h"

#define FEW_HEADS 5 /* whose sums are in registers */

/* The work at hand. */
typedef struct {
    const Stretch *stretch;
    const Desk *desk;
    const bf16 *keys, *values; /* of the head, by slot */
    long slot_step, size;
    long first_head;    /* of the query heads */
    long heads;         /* how many */
    long queries;       /* of the stretch: rows times heads */
    long spans;         /* of a query: its size in parts of 32 */
    long nearest, last; /* positions that are seen */
    long step;          /* from a query's scores to the next one's */
} Sight;

/* Turns a row's keys of sixteen positions. */
static void turn_keys(const Sight *sight, long row, long block)
{
    const Stretch *stretch = sight->stretch;
    for (long span = 0; span < sight->spans; span++) {
        long width = sight->size - span * SPAN;
        load_turned(sight->keys + span * SPAN, stretch->tables[row] + block,
                    stretch->lengths[row] - block, sight->slot_step,
                    first_halves(width), sight->desk->turned + span * LANES);
    }
}

/* Some query heads' scores with keys that are turned, by vectors.

   pairs: the queries as float32, [count, spans, 16, 2]. */
INLINE void score_few(int count, const Sight *sight, const float *pairs, float *to)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 acc[FEW_HEADS];
#pragma GCC unroll 5
    for (int q = 0; q < count; q++)
        acc[q] = _mm512_setzero_ps();
    for (long span = 0; span < sight->spans; span++) {
        __m512 even[FEW_HEADS], odd[FEW_HEADS];
#pragma GCC unroll 5
        for (int q = 0; q < count; q++)
            even[q] = odd[q] = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int pair = 0; pair < LANES; pair++) {
            __m512i keys = sight->desk->turned[span * LANES + pair];
            __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(keys, 16));
            __m512 second = _mm512_castsi512_ps(_mm512_and_si512(keys, upper));
#pragma GCC unroll 5
            for (int q = 0; q < count; q++) {
                const float *both = pairs + ((q * sight->spans + span) * LANES + pair) * 2;
                even[q] = _mm512_fmadd_ps(_mm512_set1_ps(both[0]), first, even[q]);
                odd[q] = _mm512_fmadd_ps(_mm512_set1_ps(both[1]), second, odd[q]);
            }
        }
#pragma GCC unroll 5
        for (int q = 0; q < count; q++)
            acc[q] = _mm512_add_ps(acc[q], _mm512_add_ps(even[q], odd[q]));
    }
#pragma GCC unroll 5
    for (int q = 0; q < count; q++)
        _mm512_storeu_ps(to + q * sight->step, acc[q]);
}

/* Some query heads' weighted sums of a row's values, 32 wide from `part` on, by vectors.

   weights: float32, [count, step]; out: the heads side by side. */
INLINE void gather_few(int count, const Sight *sight, long row, long part, const float *weights,
                       const float *totals, bf16 *out)
{
    const int64_t *slots = sight->stretch->tables[row];
    long seen = sight->stretch->positions[row] + 1, width = sight->size - part;
    __mmask16 masks[2] = {first_lanes(width), first_lanes(width - LANES)};
    __m512 acc[FEW_HEADS][2];
#pragma GCC unroll 5
    for (int q = 0; q < count; q++)
        acc[q][0] = acc[q][1] = _mm512_setzero_ps();
    for (long block = sight->nearest / SPAN * SPAN; block < seen; block += SPAN) {
        long end = block + SPAN < seen ? block + SPAN : seen;
        __m512 sums[2][FEW_HEADS][2]; /* of even and of odd positions */
#pragma GCC unroll 5
        for (int q = 0; q < count; q++)
            for (int v = 0; v < 2; v++)
                sums[0][q][v] = sums[1][q][v] = _mm512_setzero_ps();
        for (long at = block; at < end; at += 2) /* what is not seen has no weight */
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                const bf16 *from = sight->values + part;
                from += slots[at + odd < end ? at + odd : at] * sight->slot_step;
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    __m512 values = load_number(from + v * LANES, masks[v]);
#pragma GCC unroll 5
                    for (int q = 0; q < count; q++)
                        sums[odd][q][v] = _mm512_fmadd_ps(
                            _mm512_set1_ps(weights[q * sight->step + at + odd]), values,
                            sums[odd][q][v]);
                }
            }
#pragma GCC unroll 5
        for (int q = 0; q < count; q++)
            for (int v = 0; v < 2; v++)
                acc[q][v] = _mm512_add_ps(acc[q][v], _mm512_add_ps(sums[0][q][v], sums[1][q][v]));
    }
#pragma GCC unroll 5
    for (int q = 0; q < count; q++)
        for (int v = 0; v < 2; v++)
            store_number(out + q * sight->size + part + v * LANES, masks[v],
                       _mm512_div_ps(acc[q][v], _mm512_set1_ps(totals[q])));
}

/* Weights of a row's queries, as float32 in place of their scores; 0 for what they do not see. */
static void soften_few(const Sight *sight, const Model *model, const Layer *layer, long row,
                       float *totals, Ahead *ahead)
{
    long position = sight->stretch->positions[row], from = first_seen(layer, position);
    long begin = sight->nearest / SPAN * SPAN, first = from / LANES * LANES;
    for (long q = 0; q < sight->heads; q++, totals++) {
        float *scores = sight->desk->scores + q * sight->step;
        bf16 *weights = sight->desk->weights;
        *totals = soften(model, scores, sink_of(layer, sight->first_head + q), from, position + 1,
                         weights);
        memset(weights + begin, 0, (first - begin) * sizeof *weights);
        for (long at = begin; at <= position; at += LANES)
            _mm512_storeu_ps(scores + at, load_number(weights + at, 0xffff));
        fetch_ahead(ahead);
    }
}

/* What few queries see. */
static void attend_to_few(const Sight *sight, const Model *model, const Layer *layer,
                          const bf16 *queries, long row_step, bf16 *out, long out_step,
                          Ahead *ahead)
{
    const Stretch *stretch = sight->stretch;
    float *pairs = (float *)sight->desk->queries, totals[sight->heads];
    long size = sight->size, line = sight->spans * SPAN;
    unsigned rounding = _mm_getcsr();
    _mm_setcsr(rounding | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); /* as with tiles */
    for (long row = 0; row < stretch->count; row++) {
        for (long q = 0; q < sight->heads; q++)
            for (long at = 0; at < line; at += LANES) {
                const bf16 *from = queries + stretch->rows[row] * row_step + q * size + at;
                _mm512_storeu_ps(pairs + q * line + at, load_number(from, first_lanes(size - at)));
            }
        long seen = first_seen(layer, stretch->positions[row]);
        for (long block = seen / LANES * LANES; block <= stretch->positions[row]; block += LANES) {
            turn_keys(sight, row, block);
            for (long q = 0; q < sight->heads; q += FEW_HEADS) {
                float *to = sight->desk->scores + q * sight->step + block;
#define SCORE(n) \
    case n: \
        score_few(n, sight, pairs + q * line, to); \
        break;
                switch (sight->heads - q < FEW_HEADS ? sight->heads - q : FEW_HEADS) {
                    SCORE(1) SCORE(2) SCORE(3) SCORE(4) SCORE(5)
                }
#undef SCORE
            }
            fetch_ahead(ahead);
        }
        soften_few(sight, model, layer, row, totals, ahead);
        for (long part = 0; part < size; part += SPAN)
            for (long q = 0; q < sight->heads; q += FEW_HEADS) {
                bf16 *to = out + stretch->rows[row] * out_step + q * size;
                const float *weights = sight->desk->scores + q * sight->step;
#define GATHER(n) \
    case n: \
        gather_few(n, sight, row, part, weights, totals + q, to); \
        break;
                switch (sight->heads - q < FEW_HEADS ? sight->heads - q : FEW_HEADS) {
                    GATHER(1) GATHER(2) GATHER(3) GATHER(4) GATHER(5)
                }
#undef GATHER
            }
    }
    _mm_setcsr(rounding);
}

#endif
