/* Adjusted and scaled logits, and which of the tokens survive top-k, top-p and min-p. */

#include "warp.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "pick.h"
#include "vector.h"

#define SHARES_OFF 1e-5f   /* relative; sums of weights are off by less than this */
#define WEIGHT_OFF 0x1p-40 /* and each weight by so much: elsewhere they are multiples of it */

#define SUMMED 16 /* vectors of weights to a sum, before it is added to one of doubles */

static float penalised(float logit, float penalty)
{
    return logit < 0 ? logit * penalty : logit / penalty;
}

/* Whether an id is penalised for what stands before a place of the path. */
static int occurs(const Adjusting *how, int64_t id, long step)
{
    if (id < how->vocab && how->seen[id])
        return 1;
    while (step-- > 0)
        if (how->path[step] == id)
            return 1;
    return 0;
}

const float *adjusted(const Adjusting *how, const float *logits, long size, float *x)
{
    memcpy(x, logits, size * sizeof *x);
    for (long i = 0; i < how->count; i++)
        if (how->ids[i] < size)
            x[how->ids[i]] += how->biases[i];
    if (!how->seen)
        return x;
    long vocab = how->vocab < size ? how->vocab : size;
    for (long at = 0; at < vocab; at++) {
        uint64_t eight = 1; /* few of all ids occur */
        if (at + 8 <= vocab)
            memcpy(&eight, how->seen + at, sizeof eight);
        if (!eight)
            at += 7;
        else if (how->seen[at])
            x[at] = penalised(x[at], how->penalty);
    }
    for (long step = 0; step < how->steps; step++)
        if (how->path[step] < size && !occurs(how, how->path[step], step))
            x[how->path[step]] = penalised(x[how->path[step]], how->penalty);
    return x;
}

/* Logits over the temperature; what is no number becomes the least there is. */
static void scale(const float *logits, long size, float temperature, float *x)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        Floats scaled = load(mask, logits + at) / every(temperature);
        store(x + at, mask, finite_of(scaled));
    }
}

long count_from(const float *x, long size, float least)
{
    long count = 0;
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        count += __builtin_popcount(at_least_where(mask, load(mask, x + at), every(least)));
    }
    return count;
}

/* A number by its place among all finite ones, and back. */
INLINE int32_t place_of(float x)
{
    union { float number; int32_t bits; } it = {x};
    return it.bits ^ ((it.bits >> 31) & INT32_MAX);
}

INLINE float number_at(int32_t place)
{
    union { int32_t bits; float number; } it = {place ^ ((place >> 31) & INT32_MAX)};
    return it.number;
}

/* The k-th largest of some numbers. */
static float kth_of(const float *x, long size, long k)
{
    int64_t low = place_of(-FLT_MAX), high = place_of(FLT_MAX);
    while (low < high) { /* the last place from which on there are k */
        int64_t middle = low + (high - low + 1) / 2;
        if (count_from(x, size, number_at((int32_t)middle)) >= k)
            low = middle;
        else
            high = middle - 1;
    }
    return number_at((int32_t)low);
}

/* The k-th largest number of a row. Few are looked at more than once: of the largest of every so
   many, the k-th is no more than that of all. room: [size]. */
static float kth(const float *x, long size, long k, float *room)
{
    if (k > size / 64)
        return kth_of(x, size, k);
    long step = (size / LANES / (16 * k / LANES + 1) + 1) * LANES, count = 0;
    for (long from = 0; from < size; from += step) {
        Floats most = every(-FLT_MAX);
        for (long at = from; at < size && at < from + step; at += LANES) {
            Lanes mask = first_lanes(size - at);
            most = larger_where(mask, load(mask, x + at), most);
        }
        store(room + count, first_lanes(size - from), most);
        count += size - from < LANES ? size - from : LANES;
    }
    float least = count < k ? -FLT_MAX : kth_of(room, count, k);
    if (count_from(x, size, least) > size / 8)
        return kth_of(x, size, k);
    count = 0;
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        unsigned some = at_least_where(mask, load(mask, x + at), every(least));
        for (; some; some &= some - 1)
            room[count++] = x[at + __builtin_ctz(some)];
    }
    return kth_of(room, count, k);
}

/* Chances of survivors over that of the likeliest; 0 of others. */
static void weigh(const float *x, long size, float least, float top, float *weights)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        Floats part = load(mask, x + at);
        Lanes kept = at_least_where(mask, part, every(least));
        store(weights + at, mask, only(kept, exp_of(part - every(top))));
    }
}

/* The weight of all tokens that stand before one: likelier ones, and equal ones of lower ids; or of
   all others. */
INLINE double weight_of(const float *x, const float *weights, long size, float bar, long bar_id,
                        Lanes others)
{
    double all = 0;
    for (long begin = 0; begin < size; begin += SUMMED * LANES) {
        Floats sum = every(0.0f);
        long end = begin + SUMMED * LANES < size ? begin + SUMMED * LANES : size;
        for (long at = begin; at < end; at += LANES) {
            Lanes mask = first_lanes(size - at), lower = first_lanes(bar_id - at);
            Floats part = load(mask, x + at);
            Lanes reach = at_least_where(mask, part, every(bar));
            Lanes equal = equal_where(mask, part, every(bar));
            Lanes before = reach & (~equal | lower);
            sum = sum + only(before ^ others, load(mask, weights + at));
        }
        all += sum_of(sum);
    }
    return all;
}

Warped warp(const float *logits, long size, const Drawing *how, float *x, float *weights)
{
    Warped row = {.how = how, .x = x, .size = size, .least = -INFINITY};
    scale(logits, size, (float)(how->temperature > 1e-30 ? how->temperature : 1e-30), x);
    float top = how->top_p >= 1 && how->min_p <= 0 ? 0 : largest(x, 0, size, NULL, 0);
    if (how->top_k > 0 && how->top_k < size)
        row.least = kth(x, size, how->top_k, weights);
    if (how->top_p < 1) {
        weigh(x, size, row.least, top, weights);
        row.weights = weights;
        row.total = weight_of(x, weights, size, -INFINITY, size, 0);
        /* All tokens that weigh less than this weigh less than what is cut off, elsewhere too. */
        double few = (1 - how->top_p) * row.total / 2 / size - WEIGHT_OFF;
        float floor = few > 0 ? (float)(top + log(few)) : -INFINITY;
        row.least = floor > row.least ? floor : row.least;
    }
    if (how->min_p > 0) {
        float floor = (float)(top + log(how->min_p));
        row.least = floor > row.least ? floor : row.least;
    }
    return row;
}

int behind_nucleus(const Warped *row, long id, double *over)
{
    const float *x = row->x;
    double lost = row->size * WEIGHT_OFF, share = row->how->top_p * row->total;
    double before = weight_of(x, row->weights, row->size, x[id], id, 0);
    *over = before - share;
    /* The likeliest survives, whatever the share. */
    if ((!before && row->total > 0) || fabs(*over) > SHARES_OFF * fmax(before, share) + lost)
        return 1;
    /* Where next to all is to survive, what is left tells better. */
    double rest = (1 - row->how->top_p) * row->total;
    double others = weight_of(x, row->weights, row->size, x[id], id, ALL_LANES);
    *over = rest - others;
    return fabs(*over) > SHARES_OFF * fmax(rest, others) + lost;
}

/* Where top-p ends: tokens survive that are above the bar returned, and those on it below an id. */
static float end_of_nucleus(const Warped *row, int64_t *below)
{
    double share = row->how->top_p * row->total;
    int64_t low = place_of(-FLT_MAX), high = place_of(FLT_MAX);
    while (low < high) { /* the lowest place with less than the share above it */
        int64_t middle = low + (high - low) / 2;
        float bar = number_at((int32_t)middle);
        if (weight_of(row->x, row->weights, row->size, bar, 0, 0) < share)
            high = middle;
        else
            low = middle + 1;
    }
    float bar = number_at((int32_t)low);
    int64_t first = 1, last = row->size; /* the lowest id with the share before it */
    while (first < last) {
        int64_t middle = first + (last - first) / 2;
        if (weight_of(row->x, row->weights, row->size, bar, middle, 0) < share)
            first = middle + 1;
        else
            last = middle;
    }
    *below = first;
    return bar;
}

/* Copies tokens that top-p may leave, by rising id: all others weigh less than half of what it cuts
   off. Returns how many.

   x, weights, ids: [size]. */
static long narrowed(const Warped *row, float *x, float *weights, int64_t *ids)
{
    float least = (float)((1 - row->how->top_p) * row->total / (2.0 * row->size));
    long count = 0;
    for (long id = 0; id < row->size; id++)
        if (row->weights[id] >= least) {
            x[count] = row->x[id];
            weights[count] = row->weights[id];
            ids[count++] = id;
        }
    return count;
}

/* Cuts off what top-p does; whether that is sure. x: that of the row; room: [2 * size]. */
static int cut(const Warped *row, float *x, float *room, int64_t *ids)
{
    Warped few = *row;
    float *weights = room + row->size, next = -INFINITY;
    few.size = narrowed(row, room, weights, ids);
    few.x = room;
    few.weights = weights;
    int64_t below;
    float bar = end_of_nucleus(&few, &below);
    long last_in = -1, first_out = -1;
    for (long i = 0; i < few.size; i++)
        if (few.x[i] == bar && i < below)
            last_in = ids[i];
        else if (few.x[i] <= bar && few.x[i] > next) {
            next = few.x[i];
            first_out = ids[i];
        }
    double over;
    int sure = last_in >= 0 && behind_nucleus(row, last_in, &over) && over < 0;
    if (sure && first_out >= 0)
        sure = behind_nucleus(row, first_out, &over) && over >= 0;
    for (long id = 0; id < row->size; id++)
        x[id] = -INFINITY;
    for (long i = 0; i < few.size; i++)
        if (few.x[i] > bar || (few.x[i] == bar && i < below))
            x[ids[i]] = few.x[i];
    return sure;
}

void decoder_survivors(const float *logits, long rows, long size, const Drawing *drawings, float *x,
                       uint8_t *sure, float *room, int64_t *ids)
{
    for (long i = 0; i < rows; i++, logits += size, x += size) {
        const Drawing *how = drawings + i;
        const float *from = logits;
        if (how->adjusting)
            from = adjusted(how->adjusting, logits, size, x);
        Warped row = warp(from, size, how, x, room);
        sure[i] = row.weights ? (uint8_t)cut(&row, x, room + size, ids) : 1;
        for (long id = 0; id < size; id++)
            x[id] = x[id] >= row.least ? x[id] : -INFINITY;
    }
}
