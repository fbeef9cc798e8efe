/* What may come next: `calibration.py` and `predictor.py` once more. */

#ifndef SEARCH_H
#define SEARCH_H

#include <math.h>

#include "counts.h"

enum {
    MATCH = 0,
    ORIGINS = 4,
    MOST_ORDER = 32,
    MOST_SIBLINGS = 4,
    MOST_SOURCES = 3,
    MOST_MERGED = MOST_SOURCES * MOST_FOLLOWERS,
    MOST_BELOW = 1 + MOST_ORDER * MOST_SIBLINGS, /* candidates with one parent */
    BINS = 11, /* tenths of a chance, and certainty */
    BEYOND = 4
};

static const double LEAST_CHANCE = 0.03, MOST_CHANCE = 0.99;
static const double PRIOR_TESTS = 8, MOST_TESTS = 512;
static const double PRIOR_TRUST = 4, FORGET = 0.95, LEAST_TRUST = 0.1, MOST_TRUST = 1.5;

typedef struct {
    double passed, tests;
} Rate;

/* Predictions that are trusted alike, by origin, length of the context and tenth of the chance. */
typedef struct {
    Rate rates[ORIGINS][MOST_ORDER + 1][BINS];
} Rates;

typedef struct {
    double chance, step; /* of the path; given that the parent is right, before the text's factor */
    Rate *rate;
    int32_t token, parent, line, serial;
    int8_t known; /* tokens of what is followed after it */
} Candidate;

/* What was too unlikely to come next. */
typedef struct {
    Rate *rate;
    int32_t token;
} Doubt;

typedef struct {
    int origin;
    Counts *counts; /* NULL where the contexts of each first token have counts of their own */
    void *tables;
} Source;

/* The counts of a first token; NULL where there are none. */
typedef Counts *Lookup(void *tables, int32_t first, void *with);

typedef struct {
    int sources, order;
    Source source[MOST_SOURCES];
    Rates *rates;
    int entries; /* of what a step takes: `seconds` by `rows` */
    double *rows, *seconds;
    double passed, expected; /* of this text's predictions */
    int found, room;
    Candidate *candidates;
    int32_t *contexts; /* what is followed after each candidate, `order` tokens or fewer each */
    int waiting, waiting_room;
    Candidate *heap;
    int doubted;
    Doubt doubts[MOST_BELOW];
} Predictor;

typedef struct {
    const Predictor *predictor;
    double rows, tokens, rate;
    int seen, best;
} Worth;

static double step_seconds(const Predictor *predictor, double rows)
{
    const double *x = predictor->rows, *y = predictor->seconds;
    int right = 1;
    while (right < predictor->entries - 1 && x[right] < rows)
        right++;
    double past = rows > x[right - 1] ? rows - x[right - 1] : 0;
    return y[right - 1] + past * (y[right] - y[right - 1]) / (x[right] - x[right - 1]);
}

static Worth worth_of(const Predictor *predictor, double rows, double tokens, int nodes)
{
    Worth worth = {.predictor = predictor, .rows = rows + 1 + nodes, .tokens = tokens + 1};
    worth.rate = worth.tokens / step_seconds(predictor, worth.rows);
    return worth;
}

static void consider(Worth *worth, double chance)
{
    worth->seen++;
    worth->tokens += chance;
    double rate = worth->tokens / step_seconds(worth->predictor, worth->rows + worth->seen);
    if (rate > worth->rate)
        worth->best = worth->seen, worth->rate = rate;
}

static Rate *rate_of(Rates *rates, int origin, int length, double raw)
{
    int bin = raw > 0 ? raw < 1 ? (int)(raw * (BINS - 1)) : BINS - 1 : 0;
    return &rates->rates[origin][length][bin];
}

static double measured(const Rate *rate, double raw)
{
    return rate->tests ? (rate->passed + PRIOR_TESTS * raw) / (rate->tests + PRIOR_TESTS) : raw;
}

static double trust(const Predictor *predictor)
{
    double factor = (predictor->passed + PRIOR_TRUST) / (predictor->expected + PRIOR_TRUST);
    return factor < LEAST_TRUST ? LEAST_TRUST : factor > MOST_TRUST ? MOST_TRUST : factor;
}

static bool before(const Candidate *one, const Candidate *other)
{
    return one->chance > other->chance ||
           (one->chance == other->chance && one->serial < other->serial);
}

static bool push(Predictor *predictor, Candidate candidate)
{
    if (predictor->waiting == predictor->waiting_room) {
        int room = predictor->waiting_room ? 2 * predictor->waiting_room : 64;
        Candidate *heap = realloc(predictor->heap, room * sizeof *heap);
        if (!heap)
            return false;
        predictor->heap = heap, predictor->waiting_room = room;
    }
    Candidate *heap = predictor->heap;
    int at = predictor->waiting++;
    for (; at && before(&candidate, heap + (at - 1) / 2); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = candidate;
    return true;
}

static Candidate pop(Predictor *predictor)
{
    Candidate *heap = predictor->heap, best = heap[0], last = heap[--predictor->waiting];
    int at = 0;
    for (int below = 1; below < predictor->waiting; below = 2 * at + 1) {
        if (below + 1 < predictor->waiting && before(heap + below + 1, heap + below))
            below++;
        if (!before(heap + below, &last))
            break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = last;
    return best;
}

/* All sources' counts after a context, without the tokens of `out`, and in `next` of each which
   source knew it first; returns how many. */
static int merged(Predictor *predictor, uint64_t key, int32_t first, const Candidate *out,
                  int taken, Lookup *lookup, void *with, Follower *into)
{
    int count = 0;
    for (int index = 0; index < predictor->sources; index++) {
        Source *source = predictor->source + index;
        Counts *counts = source->counts ? source->counts : lookup(source->tables, first, with);
        Slot *slot = counts ? find(counts, key) : NULL;
        if (!slot)
            continue;
        Follower *known = into + count;
        int more = copy(&counts->young, slot, known), kept = count;
        for (int at = 0; at < more; at++) {
            Follower one = known[at];
            int same = 0;
            while (same < count && into[same].token != one.token)
                same++;
            if (same < count) {
                into[same].count += one.count;
                continue;
            }
            one.next = source->origin;
            into[kept++] = one;
        }
        count = kept;
    }
    int kept = 0;
    for (int at = 0; at < count; at++) {
        int same = 0;
        while (same < taken && out[same].token != into[at].token)
            same++;
        if (same == taken)
            into[kept++] = into[at];
    }
    return kept;
}

/* Leaves a candidate out that is too unlikely; as the next token it is tested all the same. */
static void doubt(Predictor *predictor, const Candidate *one)
{
    if (!predictor->found)
        predictor->doubts[predictor->doubted++] = (Doubt){one->rate, one->token};
}

/* Tokens that may follow a context, with their chances in `step`; returns how many. */
static int predict(Predictor *predictor, const int32_t *context, int known, double least,
                   const int32_t *expected, long agreed, Lookup *lookup, void *with, Candidate *out)
{
    uint64_t keys[MOST_ORDER + 1] = {start_key};
    Follower followers[MOST_MERGED];
    double mass = 1;
    int count = 0;
    for (int length = 1; length <= known; length++)
        keys[length] = further_back(keys[length - 1], context[known - length]);
    if (expected) {
        double raw = (agreed + 0.5) / (agreed + 1.5);
        int length = agreed > 7 ? 4 : agreed > 3 ? 3 : agreed > 1 ? 2 : agreed > 0;
        Rate *rate = rate_of(predictor->rates, MATCH, length, raw);
        out[0] = (Candidate){.token = *expected, .step = measured(rate, raw), .rate = rate};
        if (out[0].step >= least)
            count++, mass -= out[0].step;
        else
            doubt(predictor, out);
    }
    for (int length = known; length > 0 && mass >= least; length--) {
        int seen = merged(predictor, keys[length], context[known - length], out, count, lookup,
                          with, followers);
        if (!seen)
            continue;
        double total = 0;
        for (int at = 0; at < seen; at++)
            total += followers[at].count;
        if (!(total > 0) || isinf(total))
            continue;
        double escape = seen < total ? seen : total;
        rank(followers, seen);
        for (int at = 0; at < seen && at < MOST_SIBLINGS; at++) {
            double raw = mass * followers[at].count / (total + escape);
            Rate *rate = rate_of(predictor->rates, followers[at].next, length, raw);
            out[count++] = (Candidate){.token = followers[at].token,
                                       .step = measured(rate, raw),
                                       .rate = rate};
        }
        mass *= escape / (total + escape);
    }
    return count;
}

static bool room_for(Predictor *predictor, int most)
{
    if (most <= predictor->room)
        return true;
    Candidate *candidates = realloc(predictor->candidates, most * sizeof *candidates);
    if (candidates)
        predictor->candidates = candidates;
    size_t tokens = (size_t)most * predictor->order;
    int32_t *contexts = realloc(predictor->contexts, tokens * sizeof *contexts);
    if (contexts)
        predictor->contexts = contexts;
    if (!candidates || !contexts)
        return false;
    predictor->room = most;
    return true;
}

/* Finds candidates below a text that ends in `known` tokens; returns how many are worth checking,
   or -1 where there is no memory. `line` is expected, after so many tokens that `agreed`. */
static int search(Predictor *predictor, const int32_t *text, int known, int most, double rows,
                  double tokens, const int32_t *line, int expected, long agreed, Lookup *lookup,
                  void *with)
{
    int order = predictor->order, root = known, serial = 0, step = 0;
    double factor = trust(predictor), chance = 1;
    Worth worth = worth_of(predictor, rows, tokens, 0);
    Candidate below[MOST_BELOW];
    const int32_t *context = text;
    predictor->found = predictor->waiting = predictor->doubted = 0;
    if (!room_for(predictor, most))
        return -1;
    for (;;) {
        const int32_t *next = step >= 0 && step < expected ? line + step : NULL;
        double least = LEAST_CHANCE / (chance * factor);
        int count = predict(predictor, context, known, least, next, agreed + step, lookup, with,
                            below);
        for (int at = 0; at < count; at++) {
            double conditional = below[at].step * factor;
            Candidate *one = below + at;
            if (one->step < least) {
                doubt(predictor, one);
                continue;
            }
            one->chance = chance * (conditional < MOST_CHANCE ? conditional : MOST_CHANCE);
            one->serial = ++serial;
            one->parent = predictor->found - 1;
            one->line = next && one->token == *next ? step + 1 : -1;
            if (!push(predictor, *one))
                return -1;
        }
        if (!predictor->waiting || worth.seen >= most || worth.seen >= worth.best + BEYOND)
            return worth.best;
        Candidate best = pop(predictor);
        int32_t *own = predictor->contexts + (size_t)predictor->found * order;
        context = best.parent < 0 ? text : predictor->contexts + (size_t)best.parent * order;
        known = best.parent < 0 ? root : predictor->candidates[best.parent].known;
        int full = known == order;
        memcpy(own, context + full, (known - full) * sizeof *own);
        own[known - full] = best.token;
        best.known = known += !full;
        predictor->candidates[predictor->found++] = best;
        consider(&worth, best.chance);
        context = own, chance = best.chance, step = best.line;
    }
}

/* Takes a prediction whose truth has come out, of whichever text. */
static void tested(Rate *rate, bool passed)
{
    rate->passed += passed;
    rate->tests++;
    if (rate->tests > MOST_TESTS)
        rate->passed /= 2, rate->tests /= 2;
}

/* The same of a candidate, which says how far this text can be predicted, too. */
static void test(Predictor *predictor, const Candidate *candidate, bool passed)
{
    tested(candidate->rate, passed);
    predictor->passed += passed;
    predictor->expected += candidate->step;
}

/* Compares the candidates below one with the token that came; returns which was right, or NONE. */
static int test_below(Predictor *predictor, int parent, int32_t token)
{
    int right = NONE;
    for (int at = parent + 1; at < predictor->found; at++) {
        const Candidate *one = predictor->candidates + at;
        if (one->parent != parent)
            continue;
        test(predictor, one, one->token == token);
        right = one->token == token ? at : right;
    }
    return right;
}

/* Compares what was too unlikely to come next with the token that came. */
static void test_doubts(Predictor *predictor, int32_t token)
{
    for (int at = 0; at < predictor->doubted; at++)
        tested(predictor->doubts[at].rate, predictor->doubts[at].token == token);
}

/* Ends a round. */
static void age(Predictor *predictor)
{
    predictor->passed *= FORGET;
    predictor->expected *= FORGET;
}

#endif
