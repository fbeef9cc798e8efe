/* Keyed sampling: noise only where it may decide.

   A token's score is its scaled logit and Gumbel noise, -log(-log u). To beat a score s, the noise
   of a logit x needs -log u < exp(x - s), and 1 - u is less than -log u. So nearly all tokens are
   done with after the random bits, of many at a time; what is left is computed exactly. */

#include "draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "pick.h"
#include "vector.h"

#define STRETCH (4 * LANES) /* ids whose bits are made at once: four a block */

#define SLACK 1e-5f        /* relative; what bounds of noise are off by */
#define ROUNDED 2e-7       /* relative; what a score loses as a float */
#define NEARLY 1e-9        /* scores nearer than this may be in another order elsewhere */
#define SHARES_OFF 1e-5f   /* relative; sums of weights are off by less than this */
#define WEIGHT_OFF 0x1p-40 /* and each weight by so much: elsewhere they are multiples of it */

#define SUMMED 16 /* vectors of weights to a sum, before it is added to one of doubles */

/* A row while tokens of it are looked for. */
typedef struct {
    const Drawing *how;
    const float *x; /* scaled logits, [size] */
    long size;
    float least; /* none below survives */
    float bar;   /* nor any below this, nor from the id on where it is equal */
    long bar_id;
} Search;

/* Random words of sixty-four, or thirty-two, ids from a multiple of that on: Philox4x32-10. */
INLINE void random_words(const Drawing *how, long first, Ints words[4])
{
    static const int32_t OFFSETS[LANES] = {
#if LANES == 16
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
#else
        0, 2, 4, 6, 1, 3, 5, 7};
#endif
    uint32_t keys[2] = {(uint32_t)how->seed, (uint32_t)(how->seed >> 32)};
    Ints counter[4] = {
        added(every_int(first / 4), load_ints(ALL_LANES, OFFSETS)),
        every_int((int32_t)how->position), every_int((int32_t)(how->position >> 32)), every_int(0)};
    for (int round = 0; round < 10; round++) {
        Ints low[2], high[2];
        high[0] = multiplied(counter[0], every_int((int32_t)0xD2511F53), low);
        high[1] = multiplied(counter[2], every_int((int32_t)0xCD9E8D57), low + 1);
        counter[0] = high[1] ^ counter[1] ^ every_int((int32_t)keys[0]);
        counter[1] = low[1];
        counter[2] = high[0] ^ counter[3] ^ every_int((int32_t)keys[1]);
        counter[3] = low[0];
        keys[0] += 0x9E3779B9;
        keys[1] += 0xBB67AE85;
    }
    four_by_four(counter, words);
}

static double noise_of(uint32_t word)
{
    return -log(-log((word + 0.5) * 0x1p-32));
}

/* Takes a token into a list of the best. */
static void enter(long best, int64_t *ids, double *scores, long id, double score)
{
    long at = best;
    for (; at > 0 && (ids[at - 1] < 0 || score > scores[at - 1]); at--)
        if (at < best) {
            ids[at] = ids[at - 1];
            scores[at] = scores[at - 1];
        }
    if (at < best) {
        ids[at] = id;
        scores[at] = score;
    }
}

/* Whether a token stands before the bar. */
INLINE int before_bar(const Search *search, long id)
{
    return search->x[id] > search->bar || id < search->bar_id;
}

/* Finds the best of all that may survive. */
static void find(const Search *search, long best, int64_t *ids, double *scores)
{
    float floor = search->least > search->bar ? search->least : search->bar;
    for (long i = 0; i < best; i++) {
        ids[i] = -1;
        scores[i] = -INFINITY;
    }
    for (long first = 0; first < search->size; first += STRETCH) {
        Lanes open[4], any = 0;
        for (int v = 0; v < 4; v++) {
            long at = first + v * LANES;
            Lanes there = first_lanes(search->size - at);
            open[v] = at_least_where(there, load(there, search->x + at), every(floor));
            any |= open[v];
        }
        if (!any)
            continue;
        Ints words[4];
        uint32_t bits[LANES];
        random_words(search->how, first, words);
        for (int v = 0; v < 4; v++) {
            if (!open[v])
                continue;
            float beaten = (float)(scores[best - 1] - fabs(scores[best - 1]) * ROUNDED);
            long at = first + v * LANES;
            Floats rest = floats_of(shifted_right(~words[v], 8)) * every(0x1p-24f); /* of 1 - u */
            Floats ahead = load(open[v], search->x + at) - every(beaten);
            Floats needed = exp_of(smaller_of(ahead, every(1.0f))) * every(1 + SLACK);
            unsigned some = ids[best - 1] < 0 ? open[v] : at_least_where(open[v], needed, rest);
            if (some)
                store_ints(bits, words[v]);
            for (; some; some &= some - 1) {
                long lane = __builtin_ctz(some);
                if (before_bar(search, at + lane))
                    enter(best, ids, scores, at + lane,
                          (double)search->x[at + lane] + noise_of(bits[lane]));
            }
        }
    }
}

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
        store(x + at, mask, smaller_of(larger_of(scaled, every(-FLT_MAX)), every(FLT_MAX)));
    }
}

/* How many numbers are no less than one. */
static long count_from(const float *x, long size, float least)
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

/* The k-th largest number. */
static float kth(const float *x, long size, long k)
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

/* How far a token is behind the last that survives; whether that is sure. */
static int behind_nucleus(const Search *search, const float *weights, double total, long id,
                          double *over)
{
    const float *x = search->x;
    double lost = search->size * WEIGHT_OFF, share = search->how->top_p * total;
    double before = weight_of(x, weights, search->size, x[id], id, 0);
    *over = before - share;
    /* The likeliest survives, whatever the share. */
    if ((!before && total > 0) || fabs(*over) > SHARES_OFF * fmax(before, share) + lost)
        return 1;
    /* Where next to all is to survive, what is left tells better. */
    double rest = (1 - search->how->top_p) * total;
    double others = weight_of(x, weights, search->size, x[id], id, ALL_LANES);
    *over = rest - others;
    return fabs(*over) > SHARES_OFF * fmax(rest, others) + lost;
}

/* The likeliest tokens, where there is no noise; whether all logits are numbers. */
static int without_noise(const float *logits, long size, long best, int64_t *ids, double *scores)
{
    long possible = count_from(logits, size, -FLT_MAX);
    if (possible < size && count_from(logits, size, -INFINITY) < size)
        return 0;
    pick(logits, size, best, ids);
    for (long i = 0; i < best; i++) {
        if (i >= possible)
            ids[i] = -1;
        scores[i] = ids[i] < 0 ? -INFINITY : logits[ids[i]];
    }
    return 1;
}

int draw(const float *logits, long size, const Drawing *how, long best, int64_t *ids,
         double *scores, float *room)
{
    float *x = room, *weights = room + size;
    if (how->adjusting)
        logits = adjusted(how->adjusting, logits, size, x);
    if (how->temperature <= 0)
        return without_noise(logits, size, best, ids, scores);
    int whole = how->top_p >= 1;
    double total = 0;
    scale(logits, size, (float)(how->temperature > 1e-30 ? how->temperature : 1e-30), x);
    Search search = {how, x, size, -INFINITY, -INFINITY, size};
    float top = whole && how->min_p <= 0 ? 0 : largest(x, 0, size, NULL, 0);
    if (how->top_k > 0 && how->top_k < size)
        search.least = kth(x, size, how->top_k);
    if (!whole) {
        weigh(x, size, search.least, top, weights);
        total = weight_of(x, weights, size, -INFINITY, size, 0);
    }
    if (how->min_p > 0) {
        float floor = (float)(top + log(how->min_p));
        search.least = floor > search.least ? floor : search.least;
    }
    for (int certain = 1, again = 1; again;) {
        again = 0;
        find(&search, best, ids, scores);
        for (long i = 0; i + 1 < best && ids[i + 1] >= 0; i++)
            certain &= scores[i] - scores[i + 1] > NEARLY;
        for (long i = 0; !whole && i < best && ids[i] >= 0 && !again; i++) {
            double over;
            certain &= behind_nucleus(&search, weights, total, ids[i], &over);
            again = over >= 0;
            if (again) { /* nor does any that stands behind it survive */
                search.bar = x[ids[i]];
                search.bar_id = ids[i];
            }
        }
        if (!certain)
            return 0;
    }
    return 1;
}

void decoder_draw(const float *logits, long rows, long size, const Drawing *drawings, long best,
                  int64_t *ids, double *scores, float *room)
{
    for (long i = 0; i < rows; i++, logits += size, ids += best, scores += best)
        if (!draw(logits, size, drawings + i, best, ids, scores, room))
            ids[0] = -1;
}
