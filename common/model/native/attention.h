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

#define PAIR_LANES (2 * LANES) /* bfloat16 values of a vector */
#define CACHE_LINE 64
#define ROWS_TOGETHER 8        /* rows for which a block of keys is read once */
#define HEADS_TOGETHER 8       /* heads whose values are summed together */
#define LINES_AHEAD 32         /* of weights, fetched at a time */

/* Rows that see much of the same, as those of one tree do. */
typedef struct {
    const int64_t *rows;           /* [count] */
    const int64_t *positions;      /* [count] */
    const int64_t *const *tables;  /* [count]: slots of the keys a row may see, by position */
    const int64_t *lengths;        /* [count]: of the tables; longer than the position */
    long count;
} Stretch;

/* Sixteen keys, 32 values of each: lane i of vector p has the pair p of key i. */
INLINE void load_turned(const bf16 *keys, const int64_t *slots, long count, long slot_step,
                        __mmask32 mask, __m512i out[LANES])
{
    __m512i a[LANES], b[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        a[i] = _mm512_maskz_loadu_epi16(mask, keys + slots[i < count ? i : count - 1] * slot_step);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 q + j]: of keys 4 q to 4 q + 3, pairs j, j + 4, j + 8 and j + 12. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        b[j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
        b[4 + j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
        b[8 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        b[12 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        out[j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0x88);
        out[8 + j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0xdd);
        out[4 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0x88);
        out[12 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0xdd);
    }
}

/* Scores times a scale into weights, as bfloat16; returns their sum. Positions before `from` are
   not seen. */
static float soften(const float *scores, float scale, long from, long count, bf16 *weights)
{
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    long begin = from / LANES * LANES;
    for (long at = begin; at < count; at += LANES) {
        __mmask16 seen = first_lanes(count - at) & ~first_lanes(from - at);
        most = _mm512_mask_max_ps(most, seen, most, _mm512_loadu_ps(scores + at));
    }
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long at = begin; at < count; at += LANES) {
        __mmask16 seen = first_lanes(count - at) & ~first_lanes(from - at);
        __m512 under = _mm512_sub_ps(_mm512_loadu_ps(scores + at), most);
        __m512 weight = exp_of(_mm512_mul_ps(under, _mm512_set1_ps(scale)));
        weight = _mm512_maskz_mov_ps(seen, weight);
        store_bf16(weights + at, 0xffff, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    return _mm512_reduce_add_ps(sum);
}

/* Weighted sums of values for `heads` queries, 32 values wide, two positions at a time. */
INLINE void gather(int heads, const bf16 *weights, long weights_step, const float *totals,
                   const bf16 *values, const int64_t *slots, long from, long count, long slot_step,
                   bf16 *out, long out_step, long width)
{
    static const uint16_t FIRST[PAIR_LANES] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                               37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                               11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i low = _mm512_loadu_si512(FIRST), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __mmask32 mask = width >= PAIR_LANES ? ~0u : (1u << width) - 1;
    __m512 acc[HEADS_TOGETHER][2];
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++)
        acc[head][0] = acc[head][1] = _mm512_setzero_ps();
    for (long at = from / 2 * 2; at < count; at += 2) { /* what is not seen has no weight */
        long here = slots[at < from ? at + 1 : at], next = slots[at + 1 < count ? at + 1 : at];
        __m512i one = _mm512_maskz_loadu_epi16(mask, values + here * slot_step);
        __m512i two = _mm512_maskz_loadu_epi16(mask, values + next * slot_step);
        __m512i first = _mm512_permutex2var_epi16(one, low, two);
        __m512i second = _mm512_permutex2var_epi16(one, high, two);
#pragma GCC unroll 8
        for (int head = 0; head < heads; head++) {
            const bf16 *weight = weights + head * weights_step + at;
            __m512i both = _mm512_set1_epi32(*(const int32_t *)weight);
            acc[head][0] = dot_pairs(acc[head][0], first, both);
            acc[head][1] = dot_pairs(acc[head][1], second, both);
        }
    }
#pragma GCC unroll 8
    for (int head = 0; head < heads; head++) {
        __m512 total = _mm512_set1_ps(totals[head]);
        store_bf16(out + head * out_step, first_lanes(width), _mm512_div_ps(acc[head][0], total));
        store_bf16(out + head * out_step + LANES, first_lanes(width - LANES),
                   _mm512_div_ps(acc[head][1], total));
    }
}

INLINE long first_seen(const Layer *layer, long position)
{
    return layer->window && layer->window <= position ? position + 1 - layer->window : 0;
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

/* Has the keys and values of all heads come that some rows see, from afar. */
static void fetch(const Model *model, const Layer *layer, const Stretch *stretch)
{
    long slot_step = model->kv_heads * 2 * model->size;
    for (long i = 0; i < stretch->count; i++) {
        const int64_t *table = stretch->tables[i], *before = i ? stretch->tables[i - 1] : NULL;
        long position = stretch->positions[i], known = i ? stretch->positions[i - 1] : -1;
        for (long at = first_seen(layer, position); at <= position; at++) {
            if (at <= known && table[at] == before[at])
                continue;
            const char *slot = (const char *)(layer->cache + table[at] * slot_step);
            for (long byte = 0; byte < slot_step * (long)sizeof(bf16); byte += CACHE_LINE)
                _mm_prefetch(slot + byte, _MM_HINT_T0);
        }
    }
}

/* What products read after attention. */
typedef struct {
    const char *next, *end;
} Ahead;

/* Fetches a little of it, for scores and weights leave memory idle. */
INLINE void fetch_ahead(Ahead *ahead)
{
    for (int i = 0; i < LINES_AHEAD && ahead->next < ahead->end; i++, ahead->next += CACHE_LINE)
        _mm_prefetch(ahead->next, _MM_HINT_T1);
}

/* Scores of one block of positions, for every row that sees some of it. */
static void score_block(const Model *model, const Layer *layer, long kv_head,
                        const Stretch *stretch, long block, const bf16 *queries, float *scores,
                        long step, Ahead *ahead)
{
    long size = model->size, slot_step = model->kv_heads * 2 * size;
    long heads = model->heads / model->kv_heads;
    const bf16 *keys = layer->cache + kv_head * 2 * size;
    for (long d = 0; d < size; d += PAIR_LANES) {
        __m512i turned[LANES];
        long width = size - d < PAIR_LANES ? size - d : PAIR_LANES, held = -1;
        __mmask32 mask = width == PAIR_LANES ? ~0u : (1u << width) - 1;
        for (long i = 0; i < stretch->count; i++) {
            long position = stretch->positions[i];
            if (position < block || first_seen(layer, position) >= block + LANES)
                continue;
            if (held < 0 || !alike(stretch, held, i, block))
                load_turned(keys + d, stretch->tables[i] + block, stretch->lengths[i] - block,
                            slot_step, mask, turned);
            held = i;
            for (long head = 0; head < heads; head++) {
                long at = stretch->rows[i] * model->heads + kv_head * heads + head;
                const int32_t *query = (const int32_t *)(queries + at * size + d);
                float *line = scores + (i * heads + head) * step + block;
                __m512 sum = d ? _mm512_loadu_ps(line) : _mm512_setzero_ps();
                if (width == PAIR_LANES) {
#pragma GCC unroll 16
                    for (int pair = 0; pair < LANES; pair++)
                        sum = dot_pairs(sum, turned[pair], _mm512_set1_epi32(query[pair]));
                } else {
                    for (int pair = 0; pair < width / 2; pair++)
                        sum = dot_pairs(sum, turned[pair], _mm512_set1_epi32(query[pair]));
                }
                _mm512_storeu_ps(line, sum);
            }
            fetch_ahead(ahead);
        }
    }
}

/* What the query heads of one key/value head see in some rows.

   queries: [rows, heads, size]; out: [rows, out_step]; the row's heads stand side by side. */
static void attend(const Model *model, const Layer *layer, long kv_head, const Stretch *stretch,
                   const bf16 *queries, bf16 *out, long out_step, float *scores, bf16 *weights,
                   Ahead *ahead)
{
    long size = model->size, slot_step = model->kv_heads * 2 * size;
    long heads = model->heads / model->kv_heads, first_head = kv_head * heads;
    const bf16 *values = layer->cache + kv_head * 2 * size + size;
    long last = 0, nearest = INT64_MAX;
    for (long i = 0; i < stretch->count; i++) {
        long seen = first_seen(layer, stretch->positions[i]);
        last = stretch->positions[i] > last ? stretch->positions[i] : last;
        nearest = seen < nearest ? seen : nearest;
    }
    long step = (last / LANES + 1) * LANES;
    if (kv_head == 0)
        fetch(model, layer, stretch);
    for (long block = nearest / LANES * LANES; block <= last; block += LANES)
        score_block(model, layer, kv_head, stretch, block, queries, scores, step, ahead);
    for (long i = 0; i < stretch->count; i++) {
        long seen = stretch->positions[i] + 1, from = first_seen(layer, stretch->positions[i]);
        for (long first = 0; first < heads; first += HEADS_TOGETHER) {
            int together = heads - first < HEADS_TOGETHER ? heads - first : HEADS_TOGETHER;
            float totals[HEADS_TOGETHER];
            for (int head = 0; head < together; head++) {
                totals[head] = soften(scores + (i * heads + first + head) * step, model->scale,
                                      from, seen, weights + head * step);
                fetch_ahead(ahead);
            }
            bf16 *to = out + stretch->rows[i] * out_step + (first_head + first) * size;
            for (long d = 0; d < size; d += PAIR_LANES)
#define GATHER(n) \
    case n: \
        gather(n, weights, step, totals, values + d, stretch->tables[i], from, seen, slot_step, \
               to + d, size, size - d); \
        break;
                switch (together) {
                    GATHER(1) GATHER(2) GATHER(3) GATHER(4) GATHER(5) GATHER(6) GATHER(7) GATHER(8)
                }
#undef GATHER
        }
    }
}

#endif
