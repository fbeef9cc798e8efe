/* What a pass does with rows between products, each step by all threads together.

   Residuals, norms, scores and sums are float32; what products read and what the cache holds are
   numbers of the decoder's type. A row's arithmetic depends on that row and on the keys it sees
   alone. */

#ifndef PACELINE_STEPS_H
#define PACELINE_STEPS_H

#include <string.h>

#include "attention_by_vectors.h"
#include "draw.h"
#include "gate.h"
#include "norms.h"
#include "pass.h"
#include "pick.h"
#include "tiles.h"
#include "vector.h"
#include "workers.h"

#define FETCHED_MEANWHILE 1000000 /* bytes of weights during attention; second caches hold them */

/* Turns one head by its position, as `rotate_half` does; normed before where the model does so, by
   what its own numbers say or all heads'. */
static void turned(const Model *model, const Layer *layer, const float *norm, float whole,
                   float growth, long position, const float *head, Number *out)
{
    long size = layer->size, half = size / 2;
    const float *cos = layer->cos + position * half, *sin = layer->sin + position * half;
    float scaled[size], inverse = whole;
    if (norm && !model->whole_norms)
        inverse = inverse_rms(head, size, model->epsilon);
    for (long i = 0; i < size; i++)
        scaled[i] = norm ? head[i] * inverse * norm[i] : head[i];
    for (long i = 0; growth != 1.0f && i < size; i++)
        scaled[i] *= growth;
    for (long at = 0; at < half; at += LANES) {
        Lanes mask = first_lanes(half - at);
        Floats first = load(mask, scaled + at), second = load(mask, scaled + half + at);
        Floats cosine = load(mask, cos + at), sine = load(mask, sin + at);
        store_number(out + at, mask, fnmadd(second, sine, first * cosine));
        store_number(out + half + at, mask, fmadd(first, sine, second * cosine));
    }
}

/* A row as a part of a layer reads it: its norm, where there is one. */
static void read_by(Pass *pass, long row, const float *norm)
{
    const Model *model = pass->model;
    const float *x = pass->x + row * model->hidden;
    Number *a = pass->a + row * pass->a_step;
    if (norm)
        normed(x, norm, model->hidden, model->epsilon, a);
    else
        rounded(x, 1.0f, model->hidden, a);
}

/* What enters a layer, of rows whose features are wanted, and its norm. */
static void norm_attention(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    PART_OF(pass->rows) {
        if (pass->tapped)
            rounded(pass->x + i * model->hidden, model->feature_scale, model->hidden,
                    pass->tapped + i * model->taps * model->hidden);
        read_by(pass, i, pass->layer->attention_norm);
    }
}

/* Latents as products read them: those of queries normed, and of the others the first. */
static void norm_latents(void *what, Part part)
{
    Pass *pass = what;
    const Layer *layer = pass->layer;
    long q = layer->q_latent, kv = layer->kv_normed, rest = pass->latent_step - q - kv;
    PART_OF(pass->rows) {
        const float *y = pass->y + i * pass->y_step;
        Number *to = pass->latents + i * pass->latent_step;
        if (q)
            normed(y, layer->q_latent_norm, q, layer->latent_epsilon, to);
        normed(y + q, layer->kv_latent_norm, kv, layer->latent_epsilon, to + q);
        rounded(y + q + kv, 1.0f, rest, to + q + kv);
    }
}

/* 1 / rms of all heads of a row, where they are normed by that. */
static float whole_rms(const Model *model, const float *norm, const float *heads, long numbers)
{
    int whole = norm && model->whole_norms;
    return whole ? inverse_rms(heads, numbers, model->epsilon) : 1.0f;
}

/* What the cache keeps of a row: keys, and values behind each. */
static void keep(const Pass *pass, long row, const float *keys)
{
    const Model *model = pass->model;
    const Layer *layer = pass->layer;
    long size = layer->size, kv_heads = layer->kv_heads;
    long step = model->whole_norms ? size : 0; /* of norms, from head to head */
    const float *value = keys + kv_heads * size, *norm = layer->k_norm;
    float whole = whole_rms(model, norm, keys, kv_heads * size);
    Number *slot = layer->cache + pass->slots[row] * slot_size(layer);
    for (long head = 0; head < kv_heads; head++, slot += 2 * size, value += size) {
        turned(model, layer, norm ? norm + head * step : NULL, whole, 1.0f, pass->positions[row],
               keys + head * size, slot);
        float scale = model->norms_values ? inverse_rms(value, size, model->epsilon) : 1.0f;
        rounded(value, scale, size, slot + size);
    }
}

/* Queries, and what the cache keeps of every row. */
static void turn(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    const Layer *layer = pass->layer;
    long size = layer->size, heads = model->heads;
    long step = model->whole_norms ? size : 0;
    const float *norm = layer->q_norm;
    PART_OF(pass->rows) {
        const float *row = pass->y + i * pass->y_step;
        float whole = whole_rms(model, norm, row, heads * size);
        long position = pass->positions[i];
        float growth = model->growth ? model->growth[position] : 1.0f;
        for (long head = 0; head < heads; head++)
            turned(model, layer, norm ? norm + head * step : NULL, whole, growth, position,
                   row + head * size, pass->queries + (i * heads + head) * size);
        if (!layer->shares)
            keep(pass, i, row + heads * size);
    }
}

/* The view that a number names: all heads of one stretch after another. */
static View numbered(const Pass *pass, long i)
{
    long heads = pass->layer->kv_heads;
    return view_of(pass->layer, pass->stretches + i / heads, i % heads);
}

static void look(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    const Desk *desk = pass->desks + part.thread;
    Ahead ahead = {pass->layer->out.packed, pass->layer->out.packed};
    if (part.count == 1) /* else another thread may read it */
        ahead.end += FETCHED_MEANWHILE;
    View next = {NULL};
    PART_OF(pass->stretch_count * pass->layer->kv_heads) {
        int first = !next.stretch;
        View view = first ? numbered(pass, i) : next;
        next = i + 1 < end ? numbered(pass, i + 1) : view;
        if (pass->tiled) {
            attend_by_tiles(model, pass->layer, view.kv_head, view.stretch, pass->queries, pass->a,
                            pass->a_step, desk, &ahead);
            continue;
        }
        if (FETCHED_BEFORE && first)
            fetch_first(pass->layer, &view);
        attend_by_vectors(model, pass->layer, &view, i + 1 < end ? &next : NULL, pass->queries,
                          pass->a, pass->a_step, desk);
    }
}

static void norm_rows(void *what, Part part)
{
    Pass *pass = what;
    PART_OF(pass->rows)
        read_by(pass, i, pass->norm);
}

/* Adds the norm of what a part of a layer made. */
static void add_normed(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    PART_OF(pass->rows) {
        const float *y = pass->y + i * pass->y_step;
        float *x = pass->x + i * model->hidden;
        Floats inverse = every(inverse_rms(y, model->hidden, model->epsilon));
        for (long at = 0; at < model->hidden; at += LANES) {
            Lanes mask = first_lanes(model->hidden - at);
            Floats norm = normed_lanes(mask, y + at, inverse, pass->norm + at);
            store(x + at, mask, load(mask, x + at) + norm);
        }
    }
}

static void gate(void *what, Part part)
{
    Pass *pass = what;
    const Layer *layer = pass->layer;
    long inner = layer->gate_up.out / 2, odd = layer->down.in > inner; /* padding is read, too */
    int weighed = layer->experts && scores_of(layer->experts) > layer->experts->count;
    PART_OF(pass->rows) {
        float *both = pass->y + i * pass->y_step;
        for (long at = 0; weighed && at < inner; at++)
            both[inner + at] *= pass->mixing.shares[i];
        gated(&pass->model->gate, both, inner, pass->a + i * pass->a_step);
        if (odd)
            pass->a[i * pass->a_step + inner] = 0;
    }
}

/* Adds up what rows made and what experts made of them, each normed by itself. */
static void join_mixed(void *what, Part part)
{
    Pass *pass = what;
    const MixtureNorms *norms = &pass->layer->experts->norms;
    long hidden = pass->model->hidden;
    float epsilon = pass->model->epsilon;
    PART_OF(pass->rows) {
        float *y = pass->y + i * pass->y_step;
        const float *mixed = pass->mixed + i * hidden;
        Floats shared = every(inverse_rms(y, hidden, epsilon));
        Floats experts = every(inverse_rms(mixed, hidden, epsilon));
        for (long at = 0; at < hidden; at += LANES) {
            Lanes mask = first_lanes(hidden - at);
            Floats one = normed_lanes(mask, y + at, shared, norms->shared_post + at);
            Floats other = normed_lanes(mask, mixed + at, experts, norms->experts_post + at);
            store(y + at, mask, one + other);
        }
    }
}

/* Has what rows made gate what the layer reads beside them. */
static void gate_per_layer(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    long size = model->per_layer_size, layer = pass->layer - model->layer;
    PART_OF(pass->rows) {
        long row = pass->wanted_alone ? pass->batch->wanted[i] : i;
        float *both = pass->y + i * pass->y_step;
        const float *beside = pass->per_layer + (row * model->layers + layer) * size;
        memcpy(both + size, beside, size * sizeof *both);
        gated(&model->gate, both, size, pass->a + i * pass->a_step);
    }
}

static void scale_rows(void *what, Part part)
{
    Pass *pass = what;
    long hidden = pass->model->hidden;
    Floats scale = every(pass->layer->scale);
    PART_OF(pass->rows)
        for (long at = 0; at < hidden; at += LANES) {
            Lanes mask = first_lanes(hidden - at);
            float *x = pass->x + i * hidden + at;
            store(x, mask, load(mask, x) * scale);
        }
}

static void norm_features(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    PART_OF(pass->rows) {
        normed(pass->x + i * model->hidden, model->norm, model->hidden, model->epsilon,
               pass->tapped + i * model->taps * model->hidden);
    }
}

static void norm_states(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    PART_OF(pass->rows) {
        const float *x = pass->x + i * model->hidden;
        normed(x, model->norm, model->hidden, model->epsilon,
               pass->batch->states + i * model->hidden);
        if (pass->batch->left)
            memcpy(pass->batch->left + i * model->hidden, x, model->hidden * sizeof *x);
    }
}

static void keep_wanted(void *what, Part part)
{
    Pass *pass = what;
    long hidden = pass->model->hidden, seen = pass->layer->out.in;
    PART_OF(pass->batch->wanted_rows) {
        long row = pass->batch->wanted[i];
        memcpy(pass->wanted_x + i * hidden, pass->x + row * hidden, hidden * sizeof *pass->x);
        memcpy(pass->wanted_a + i * pass->a_step, pass->a + row * pass->a_step,
               seen * sizeof *pass->a);
    }
}

static void cap_logits(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    long vocab = model->head.out;
    PART_OF(pass->batch->wanted_rows)
        capped(pass->batch->logits + i * vocab, 1.0f, model->head_softcap, vocab);
}

static void choose(void *what, Part part)
{
    Pass *pass = what;
    long vocab = pass->model->head.out;
    const Batch *batch = pass->batch;
    PART_OF(batch->wanted_rows) {
        const float *logits = batch->logits + i * vocab;
        int64_t best[2];
        double scores[2];
        if (!batch->drawings)
            pick(logits, vocab, 1, batch->chosen + i);
        else
            batch->chosen[i] = draw(logits, vocab, batch->drawings + i, 2, best, scores,
                                    pass->drawn + part.thread * 2 * vocab)
                                   ? best[0]
                                   : -1;
    }
}

#endif
