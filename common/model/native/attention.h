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
#define ROWS_TOGETHER 8        /* rows for which a block of keys is read once */
#define LINES_AHEAD 32         /* of weights, fetched at a time */

/* Rows that see much of the same, as those of one tree do. */
typedef struct {
    const int64_t *rows;           /* [count] */
    const int64_t *positions;      /* [count] */
    const int64_t *const *tables;  /* [count]: slots of the keys a row may see, by position */
    const int64_t *lengths;        /* [count]: of the tables; longer than the position */
    long agreed;                   /* positions that have the same slots in all of them */
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

/* Two vectors number by number: what begins with their first halves, and with their second. */
INLINE void interleaved(__m512i one, __m512i two, __m512i *first, __m512i *second)
{
    static const uint16_t FIRST[PAIR_LANES] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                               37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                               11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i low = _mm512_loadu_si512(FIRST), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    *first = _mm512_permutex2var_epi16(one, low, two);
    *second = _mm512_permutex2var_epi16(one, high, two);
}

/* Scores times a scale into weights, as bfloat16; returns their sum. Positions before `from` are
   not seen. */
static float soften(const float *scores, float scale, long from, long count, bf16 *weights)
{
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    __m512 steps = _mm512_set1_ps(scale * 1.44269504088896341f); /* a number of powers of two */
    long begin = from / LANES * LANES;
    for (long at = begin; at < count; at += LANES) {
        __mmask16 seen = first_lanes(count - at) & ~first_lanes(from - at);
        most = _mm512_mask_max_ps(most, seen, most, _mm512_loadu_ps(scores + at));
    }
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long at = begin; at < count; at += LANES) {
        __mmask16 seen = first_lanes(count - at) & ~first_lanes(from - at);
        __m512 under = _mm512_sub_ps(_mm512_loadu_ps(scores + at), most);
        __m512 weight = exp2_of(_mm512_mul_ps(under, steps));
        weight = _mm512_maskz_mov_ps(seen, weight);
        store_bf16(weights + at, 0xffff, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    return _mm512_reduce_add_ps(sum);
}

INLINE long first_seen(const Layer *layer, long position)
{
    return layer->window && layer->window <= position ? position + 1 - layer->window : 0;
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

/* Room for one thread's attention. */
typedef struct {
    float *scores;   /* of queries over positions */
    bf16 *weights;   /* the same, softened */
    bf16 *queries;   /* by tiles only, as the two below */
    bf16 *values;    /* of some positions, in pairs */
    __m512i *turned; /* keys of some positions */
} Desk;

#endif
