/* Keyed sampling: noise only where it may decide.

   A token's score is its scaled logit and Gumbel noise, -log(-log u). To beat a score s, the noise
   of a logit x needs -log u < exp(x - s), and 1 - u is less than -log u. So nearly all tokens are
   done with after the random bits, of many at a time; what is left is computed exactly. */

#include "draw.h"

#include <float.h>
#include <math.h>

#include "pick.h"
#include "vector.h"

#define STRETCH (4 * LANES) /* ids whose bits are made at once: four a block */

#define SLACK 1e-5f   /* relative; what bounds of noise are off by */
#define ROUNDED 2e-7  /* relative; what a score loses as a float */
#define MOST_NOISE 23 /* there is less: u has 32 bits */
#define NEARLY 1e-9   /* scores nearer than this may be in another order elsewhere */

/* A row while tokens of it are looked for. */
typedef struct {
    Warped row;
    float bar; /* none below survives, nor from the id on where it is equal */
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

/* A float that a score is no less than. */
INLINE float rounded_down(double score)
{
    return (float)(score - fabs(score) * ROUNDED);
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
    return search->row.x[id] > search->bar || id < search->bar_id;
}

/* Finds the best of all that may survive. */
static void find(const Search *search, long best, int64_t *ids, double *scores)
{
    float floor = search->row.least > search->bar ? search->row.least : search->bar;
    for (long i = 0; i < best; i++) {
        ids[i] = -1;
        scores[i] = -INFINITY;
    }
    for (long first = 0; first < search->row.size; first += STRETCH) {
        Lanes open[4], any = 0;
        float reached = rounded_down(scores[best - 1]) - MOST_NOISE;
        floor = reached > floor ? reached : floor; /* scores only rise */
        for (int v = 0; v < 4; v++) {
            long at = first + v * LANES;
            Lanes there = first_lanes(search->row.size - at);
            open[v] = at_least_where(there, load(there, search->row.x + at), every(floor));
            any |= open[v];
        }
        if (!any)
            continue;
        Ints words[4];
        uint32_t bits[LANES];
        random_words(search->row.how, first, words);
        for (int v = 0; v < 4; v++) {
            if (!open[v])
                continue;
            float beaten = rounded_down(scores[best - 1]);
            long at = first + v * LANES;
            Floats rest = floats_of(shifted_right(~words[v], 8)) * every(0x1p-24f); /* of 1 - u */
            Floats ahead = load(open[v], search->row.x + at) - every(beaten);
            Floats needed = exp_of(smaller_of(ahead, every(1.0f))) * every(1 + SLACK);
            unsigned some = ids[best - 1] < 0 ? open[v] : at_least_where(open[v], needed, rest);
            if (some)
                store_ints(bits, words[v]);
            for (; some; some &= some - 1) {
                long lane = __builtin_ctz(some);
                if (before_bar(search, at + lane))
                    enter(best, ids, scores, at + lane,
                          (double)search->row.x[at + lane] + noise_of(bits[lane]));
            }
        }
    }
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
    if (how->adjusting)
        logits = adjusted(how->adjusting, logits, size, room);
    if (how->temperature <= 0)
        return without_noise(logits, size, best, ids, scores);
    Warped row = warp(logits, size, how, room, room + size);
    Search search = {row, -INFINITY, size};
    for (int certain = 1, again = 1; again;) {
        again = 0;
        find(&search, best, ids, scores);
        for (long i = 0; i + 1 < best && ids[i + 1] >= 0; i++)
            certain &= scores[i] - scores[i + 1] > NEARLY;
        for (long i = 0; row.weights && i < best && ids[i] >= 0 && !again; i++) {
            double over;
            certain &= behind_nucleus(&row, ids[i], &over);
            again = over >= 0;
            if (again) { /* nor does any that stands behind it survive */
                search.bar = row.x[ids[i]];
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
