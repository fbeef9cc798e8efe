/* The experts of a layer: rows go to those that they take, grouped by expert, and what comes back is
   added to them in the order of the experts. */

#ifndef PACELINE_EXPERTS_H
#define PACELINE_EXPERTS_H

#include <string.h>

#include "gate.h"
#include "product.h"

/* A task for threads: the part of a layer, for some rows. */
typedef struct {
    const Experts *by;
    const Gate *gate;
    long rows, hidden;
    const Number *a;       /* rows as experts read them, [rows, a_step] */
    float *scores;         /* [rows, scores_step]; their parts are added to the first */
    float *to;             /* what becomes of them, [rows, to_step] */
    long a_step, scores_step, to_step;
    int adds;              /* whether to what is there */
    int64_t *which;        /* [rows, chosen], rising */
    int64_t *places;       /* [rows, chosen]: where the row stands, of all that go to an expert */
    float *weights;        /* [rows, chosen] */
    float *shares;         /* [rows], of what all take, where that is weighed */
    int64_t *from;         /* [rows * chosen], by expert: which row stands there */
    Number *in;            /* [rows * chosen, in_step] */
    float *out;            /* [rows * chosen, out_step] */
    long in_step, out_step;
    Group *groups;         /* of as many experts as there may be */
    Products products;     /* of those rows */
} Mixing;

INLINE Floats sigmoid_of(Floats x)
{
    return every(1.0f) / (every(1.0f) + exp_of(every(0.0f) - x));
}

/* Scores as chances, or each by itself. */
static void scored(const Experts *by, const float *scores, float *out)
{
    float top = scores[0];
    for (long i = 1; i < by->count; i++)
        top = scores[i] > top ? scores[i] : top;
    Floats sums = every(0.0f);
    for (long at = 0; at < by->count; at += LANES) {
        Lanes mask = first_lanes(by->count - at);
        Floats x = load(mask, scores + at);
        store(out + at, mask, by->sigmoid ? sigmoid_of(x) : exp_of(x - every(top)));
        sums = sums + load(mask, out + at);
    }
    float sum = by->sigmoid ? 1.0f : sum_of(sums);
    for (long i = 0; i < by->count; i++)
        out[i] /= sum;
}

/* 1 / (1 + exp(-x)). */
static float sigmoid(float x)
{
    float found[LANES];
    store(found, ALL_LANES, sigmoid_of(every(x)));
    return found[0];
}

/* Finds which experts a row takes, and by which weights. */
static void choose_experts(const Experts *by, const float *scores, int64_t *which, float *weights)
{
    float chances[by->count], ranks[by->count];
    uint8_t taken[by->count];
    memset(taken, 0, sizeof taken);
    scored(by, scores, chances);
    for (long i = 0; i < by->count; i++)
        ranks[i] = chances[i] + (by->favours ? by->favours[i] : 0.0f);
    for (long n = 0; n < by->chosen; n++) {
        long best = 0;
        while (taken[best])
            best++;
        for (long i = best + 1; i < by->count; i++)
            if (!taken[i] && ranks[i] > ranks[best])
                best = i;
        taken[best] = 1;
    }
    float sum = 0.0f;
    long n = 0;
    for (long i = 0; i < by->count; i++)
        if (taken[i]) {
            which[n] = i;
            weights[n++] = chances[i];
            sum += chances[i];
        }
    float scale = by->summed ? by->scale / (sum > FLT_MIN ? sum : FLT_MIN) : by->scale;
    for (long i = 0; i < n; i++)
        weights[i] *= by->factors ? scale * by->factors[which[i]] : scale;
}

/* Scores of a row, and of what all rows take, where that is weighed. */
static long scores_of(const Experts *by)
{
    return by->router.out / by->router_parts;
}

static void choose_for_rows(void *what, Part part)
{
    Mixing *mixing = what;
    const Experts *by = mixing->by;
    long count = scores_of(by);
    PART_OF(mixing->rows) {
        float *scores = mixing->scores + i * mixing->scores_step;
        for (long at = count; at < by->router.out; at++)
            scores[at % count] += scores[at];
        choose_experts(by, scores, mixing->which + i * by->chosen,
                       mixing->weights + i * by->chosen);
        if (count > by->count)
            mixing->shares[i] = sigmoid(scores[by->count]);
    }
}

/* Gives every row a place at each of its experts, those of one expert side by side. */
static void group_rows(Mixing *mixing)
{
    const Experts *by = mixing->by;
    long places = mixing->rows * by->chosen, groups = 0, begin = 0;
    int64_t next[by->count];
    memset(next, 0, sizeof next);
    for (long i = 0; i < places; i++)
        next[mixing->which[i]]++;
    for (long expert = 0; expert < by->count; expert++) {
        long rows = next[expert];
        next[expert] = begin;
        if (rows)
            mixing->groups[groups++] = (Group){by->gate_up + expert, begin, rows};
        begin += rows;
    }
    for (long i = 0; i < places; i++) {
        long place = next[mixing->which[i]]++;
        mixing->places[i] = place;
        mixing->from[place] = i / by->chosen;
    }
    mixing->products.groups = mixing->groups;
    mixing->products.group_count = groups;
}

static void take_places(void *what, Part part)
{
    Mixing *mixing = what;
    PART_OF(mixing->rows * mixing->by->chosen)
        memcpy(mixing->in + i * mixing->in_step, mixing->a + mixing->from[i] * mixing->a_step,
               mixing->hidden * sizeof *mixing->in);
}

/* Gates what the first products made, which the second ones read. */
static void gate_places(void *what, Part part)
{
    Mixing *mixing = what;
    PART_OF(mixing->rows * mixing->by->chosen)
        gated(mixing->gate, mixing->out + i * mixing->out_step, mixing->by->down->in,
              mixing->in + i * mixing->in_step);
}

static void add_experts(void *what, Part part)
{
    Mixing *mixing = what;
    long chosen = mixing->by->chosen, hidden = mixing->hidden;
    PART_OF(mixing->rows) {
        const int64_t *places = mixing->places + i * chosen;
        const float *weights = mixing->weights + i * chosen;
        float *to = mixing->to + i * mixing->to_step;
        for (long at = 0; at < hidden; at += LANES) {
            Lanes mask = first_lanes(hidden - at);
            Floats sum = every(0.0f);
            for (long n = 0; n < chosen; n++) {
                Floats made = load(mask, mixing->out + places[n] * mixing->out_step + at);
                sum = fmadd(made, every(weights[n]), sum);
            }
            if (mixing->adds)
                sum = sum + load(mask, to + at);
            store(to + at, mask, sum);
        }
    }
}

/* Has experts work on rows, whose scores are there. */
static void run_experts(Workers *workers, int threads, Mixing *mixing)
{
    Products *products = &mixing->products;
    workers_run(workers, threads, choose_for_rows, mixing);
    group_rows(mixing);
    workers_run(workers, threads, take_places, mixing);
    products->from = mixing->in;
    products->from_step = mixing->in_step;
    products->to = mixing->out;
    products->to_step = mixing->out_step;
    products->adds = 0;
    run_products(workers, threads, products);
    workers_run(workers, threads, gate_places, mixing);
    for (long g = 0; g < products->group_count; g++)
        mixing->groups[g].by = mixing->by->down + (mixing->groups[g].by - mixing->by->gate_up);
    run_products(workers, threads, products);
    workers_run(workers, threads, add_experts, mixing);
}

#endif
