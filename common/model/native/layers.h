/* Runs a pass that is laid out, layer by layer. */

#ifndef PACELINE_LAYERS_H
#define PACELINE_LAYERS_H

#include "embeddings.h"
#include "experts.h"
#include "pass.h"
#include "product.h"
#include "steps.h"
#include "workers.h"

/* Multiplies rows by a matrix; what comes out goes to others or is added to them. */
static void product(Pass *pass, const Product *by, long count, const Number *from, long from_step,
                    float *to, long to_step, int adds)
{
    Group all = {by, 0, count};
    Products *products = &pass->products;
    products->groups = &all;
    products->group_count = 1;
    products->from = from;
    products->from_step = from_step;
    products->to = to;
    products->to_step = to_step;
    products->adds = adds;
    run_products(pass->workers, pass->threads, products);
}

/* What a product makes of rows in `a`, in `y`. */
static void make(Pass *pass, const Product *by)
{
    product(pass, by, pass->rows, pass->a, pass->a_step, pass->y, pass->y_step, 0);
}

/* Does a step with all rows. */
static void each(Pass *pass, Task *step)
{
    workers_run(pass->workers, pass->threads, step, pass);
}

/* Has products read rows as they are, or their norm. */
static void read_rows(Pass *pass, const float *norm)
{
    pass->norm = norm;
    each(pass, norm_rows);
}

/* Queries, keys and values of all heads, by way of latents. */
static void make_heads_of_latents(Pass *pass)
{
    const Layer *layer = pass->layer;
    long step = pass->latent_step;
    make(pass, &layer->latent);
    each(pass, norm_latents);
    product(pass, &layer->qkv, pass->rows, layer->q_latent ? pass->latents : pass->a,
            layer->q_latent ? step : pass->a_step, pass->y, pass->y_step, 0);
    product(pass, &layer->kv, pass->rows, pass->latents + layer->q_latent, step,
            pass->y + layer->qkv.out, pass->y_step, 0);
}

/* What rows are seen as, and look by: fills the layer's cache, and queries. */
static void write_keys(Pass *pass)
{
    each(pass, norm_attention);
    if (pass->layer->latent.out)
        make_heads_of_latents(pass);
    else
        make(pass, &pass->layer->qkv);
    each(pass, turn);
}

/* Goes on with wanted rows alone; not yet where attention is to come and a row is wanted twice, for
   it has one place among those that go on. */
static void leave_others(Pass *pass, int last)
{
    if (pass->wanted_alone || (!last && !place_wanted(pass)))
        return;
    each(pass, keep_wanted);
    pass->x = pass->wanted_x;
    pass->a = pass->wanted_a;
    pass->rows = pass->batch->wanted_rows;
    pass->wanted_alone = 1;
    if (!last)
        lay_stretches(pass);
}

/* Adds to `x` the norm of what is in `y`. */
static void add_norm(Pass *pass, const float *norm)
{
    pass->norm = norm;
    each(pass, add_normed);
}

/* Adds to `x` what a product makes of rows, or its norm. */
static void add(Pass *pass, const Product *by, const float *post_norm)
{
    if (!post_norm) {
        product(pass, by, pass->rows, pass->a, pass->a_step, pass->x, pass->model->hidden, 1);
        return;
    }
    make(pass, by);
    add_norm(pass, post_norm);
}

/* What a layer's experts make of rows; it goes to others or is added to them. */
static void mix(Pass *pass, float *to, long to_step, int adds)
{
    Mixing *mixing = &pass->mixing;
    mixing->by = pass->layer->experts;
    make(pass, &mixing->by->router);
    if (mixing->by->norms.experts)
        read_rows(pass, mixing->by->norms.experts);
    mixing->rows = pass->rows;
    mixing->a = pass->a;
    mixing->a_step = pass->a_step;
    mixing->scores = pass->y;
    mixing->scores_step = pass->y_step;
    mixing->to = to;
    mixing->to_step = to_step;
    mixing->adds = adds;
    run_experts(pass->workers, pass->threads, mixing);
}

/* Adds to `x` what a layer's experts make of rows, or its norm. */
static void add_mixed(Pass *pass)
{
    const float *post_norm = pass->layer->mlp_post_norm;
    if (!post_norm) {
        mix(pass, pass->x, pass->model->hidden, 1);
        return;
    }
    mix(pass, pass->y, pass->y_step, 0);
    add_norm(pass, post_norm);
}

/* Adds to `x` the norm of what experts and the part beside them make of rows, all with norms of
   their own. */
static void add_both(Pass *pass)
{
    const Layer *layer = pass->layer;
    read_rows(pass, layer->experts->norms.router);
    mix(pass, pass->mixed, pass->model->hidden, 0);
    read_rows(pass, layer->mlp_norm);
    make(pass, &layer->gate_up);
    each(pass, gate);
    make(pass, &layer->down);
    each(pass, join_mixed);
    add_norm(pass, layer->mlp_post_norm);
}

/* What a feed-forward part makes of rows: adds to `x`. */
static void run_plain(Pass *pass)
{
    const Layer *layer = pass->layer;
    make(pass, &layer->gate_up);
    each(pass, gate);
    add(pass, &layer->down, layer->experts ? NULL : layer->mlp_post_norm);
}

/* What rows make of what they saw: adds to `x`. */
static void run_mlp(Pass *pass)
{
    const Layer *layer = pass->layer;
    add(pass, &layer->out, layer->attention_post_norm);
    if (layer->experts && layer->experts->norms.experts) {
        add_both(pass);
        return;
    }
    read_rows(pass, layer->mlp_norm);
    if (layer->experts)
        add_mixed(pass);
    if (layer->gate_up.out)
        run_plain(pass);
}

/* What rows of a drafting head begin with. */
static void begin_draft(Pass *pass)
{
    const Model *model = pass->model;
    each(pass, norm_tokens);
    if (pass->batch->shown)
        product(pass, &model->shown, pass->rows, pass->batch->shown, model->shown.in, pass->x,
                model->hidden, 0);
    if (model->given_norm)
        each(pass, norm_given);
}

/* What layers read beside rows. */
static void make_per_layer(Pass *pass)
{
    const Product *by = &pass->model->per_layer_product;
    read_rows(pass, NULL);
    product(pass, by, pass->rows, pass->a, pass->a_step, pass->per_layer, by->out, 0);
    each(pass, add_per_layer);
}

/* What rows make of what the layer reads beside them: adds to `x`. */
static void take_per_layer(Pass *pass)
{
    const Layer *layer = pass->layer;
    read_rows(pass, NULL);
    make(pass, &layer->per_layer_gate);
    each(pass, gate_per_layer);
    add(pass, &layer->per_layer_out, layer->per_layer_post_norm);
}

/* How many layers there are up to the last that has keys of its own. */
static long keyed(const Model *model)
{
    long count = model->layers;
    while (model->layer[count - 1].shares)
        count--;
    return count;
}

/* Runs a pass that is laid out. */
static void run_pass(Pass *pass)
{
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    lay_stretches(pass);
    each(pass, embed);
    if (model->token_norm)
        begin_draft(pass);
    if (model->per_layer_size)
        make_per_layer(pass);
    long taps = batch->features ? model->taps : 0, tap = 0, last_keyed = keyed(model) - 1;
    for (long layer = 0; layer < model->layers; layer++) {
        pass->layer = model->layer + layer;
        int tapped = tap < taps && model->tapped[tap] == layer;
        pass->tapped = tapped ? batch->features + tap++ * model->hidden : NULL;
        write_keys(pass);
        int done = layer >= last_keyed && tap == taps; /* with rows that are not wanted */
        if (done && !batch->wanted_rows) /* pieces of prompts, which are only to be seen */
            return;
        each(pass, look);
        if (done)
            leave_others(pass, layer == model->layers - 1);
        run_mlp(pass);
        if (model->per_layer_size)
            take_per_layer(pass);
        if (pass->layer->scale != 1.0f)
            each(pass, scale_rows);
    }
    if (tap < taps) { /* the states of all rows */
        pass->tapped = batch->features + tap * model->hidden;
        each(pass, norm_features);
        if (!batch->wanted_rows)
            return;
        leave_others(pass, 1);
    }
    each(pass, norm_states);
    product(pass, &model->head, batch->wanted_rows, batch->states, model->hidden,
            batch->logits, model->head.out, 0);
    if (model->head_softcap)
        each(pass, cap_logits);
    if (batch->chosen)
        each(pass, choose);
}

#endif
