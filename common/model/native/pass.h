/* One pass of a batch: what it holds, and how that is laid out in memory. */

#ifndef PACELINE_PASS_H
#define PACELINE_PASS_H

#include <limits.h>
#include <string.h>

#include "attention_by_vectors.h"
#include "decoder.h"
#include "experts.h"
#include "product.h"
#include "tiles.h"
#include "workers.h"

/* A pass; all threads go through its steps together. */
typedef struct {
    const Model *model;
    const Batch *batch;
    const Layer *layer;
    const float *norm;                    /* of what is read, or added to `x`, next */
    Products products;                    /* of all rows, where no experts are at work */
    float *x;                             /* residuals, [rows, hidden] */
    Number *tapped;                       /* where those that enter the layer go, a row of them
                                             `taps` further each; or NULL */
    float *y;                             /* what a product made, [rows, y_step] */
    Number *a;                            /* what a product reads, [rows, a_step] */
    Number *latents;                      /* where attention is latent, [rows, latent_step] */
    float *per_layer;                     /* what layers read beside, [rows, layers, size] */
    float *wanted_x;                      /* of wanted rows alone: `x`, and `a` */
    Number *wanted_a;
    Number *queries;                      /* [rows, heads * size] */
    int64_t *positions, *slots;           /* [rows]; of the latter, where keys are written */
    int64_t *joined;                      /* tables with their tails, of runs that have one */
    Stretch *stretches;                   /* [stretch_count] */
    int64_t *places;                      /* [rows]: of each the place among wanted ones, or -1 */
    const int64_t **row_tables;           /* [rows], in the order of runs, as those below */
    int64_t *row_numbers, *row_positions, *row_lengths;
    Desk *desks;                          /* [threads] */
    Mixing mixing;                        /* of a layer with experts */
    float *mixed;                         /* what these made, where it has a norm, [rows, hidden] */
    float *drawn;                         /* for draws, [threads, 2 * vocab] */
    long rows;                            /* that go on */
    int wanted_alone;                     /* whether these are only those that are wanted */
    long y_step, a_step, latent_step, stretch_count;
    Workers *workers;
    int threads, tiled;
} Pass;

/* The slots of a run's keys, by position: its table, or a copy in `room` where it has a tail; moves
   `room` on. */
static const int64_t *joined(const Batch *batch, long run, int64_t **room)
{
    long length = batch->lengths[run], tail = tail_of(batch, run);
    if (!tail)
        return batch->tables[run];
    int64_t *copy = *room;
    memcpy(copy, batch->tables[run], length * sizeof *copy);
    memcpy(copy + length, batch->behind + batch->tails[run], tail * sizeof *copy);
    *room += length + tail;
    return copy;
}

static long larger(long a, long b)
{
    return a > b ? a : b;
}

static long smaller(long a, long b)
{
    return a < b ? a : b;
}

/* Positions at the beginning, in whole spans, that all rows of a stretch have the same slots for;
   no end where they have one table. */
static long agreed(const Stretch *stretch)
{
    long most = LONG_MAX;
    for (long i = 1; i < stretch->count; i++) {
        const int64_t *one = stretch->tables[i - 1], *other = stretch->tables[i];
        if (one == other)
            continue;
        long length = smaller(stretch->lengths[i - 1], stretch->lengths[i]), same = 0;
        while (same < length && one[same] == other[same])
            same++;
        most = smaller(most, same / SPAN * SPAN);
    }
    return most;
}

/* Lays runs out row by row, of rows that go on, and cuts them into stretches of such that begin with
   the same key, as those of one sequence do. */
static void lay_stretches(Pass *pass)
{
    const Batch *batch = pass->batch;
    long count = 0, next = 0;
    int64_t *room = pass->joined;
    Stretch *last = NULL;
    for (long run = 0; run < batch->runs; run++) {
        const int64_t *table = joined(batch, run, &room);
        long start = batch->starts[run], end = batch->starts[run + 1];
        for (long at = start; at < end; at++) {
            long position = batch->positions[run] + at - start, row = batch->ordered[at];
            row = pass->wanted_alone ? pass->places[row] : row;
            if (row < 0)
                continue;
            pass->row_numbers[next] = row;
            pass->positions[row] = pass->row_positions[next] = position;
            pass->slots[row] = table[position];
            pass->row_tables[next] = table;
            pass->row_lengths[next] = batch->positions[run] + end - start;
            if (!last || last->count == ROWS_TOGETHER || last->tables[0][0] != table[0]) {
                last = pass->stretches + count++;
                *last = (Stretch){pass->row_numbers + next, pass->row_positions + next,
                                  pass->row_tables + next, pass->row_lengths + next, 0, 0};
            }
            last->count++;
            next++;
        }
    }
    for (long i = 0; pass->tiled && i < count; i++)
        pass->stretches[i].agreed = agreed(pass->stretches + i);
    pass->stretch_count = count;
}

/* Finds the places of wanted rows among such; whether none is wanted twice. */
static int place_wanted(Pass *pass)
{
    const Batch *batch = pass->batch;
    for (long row = 0; row < batch->rows; row++)
        pass->places[row] = -1;
    for (long i = 0; i < batch->wanted_rows; i++) {
        if (pass->places[batch->wanted[i]] >= 0)
            return 0;
        pass->places[batch->wanted[i]] = i;
    }
    return 1;
}

/* Takes a piece of room; only counts where there is none. */
static void *taken(char *room, size_t *used, size_t bytes)
{
    void *piece = room ? room + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return piece;
}

/* Lays a desk out in a room, for any layer of a model; see `taken`. */
static void lay_desk(Desk *desk, const Model *model, int tiled, long longest, char *room,
                     size_t *used)
{
    long heads = 0, size = 0, asked = 0; /* the most; of the last, of queries that share a key */
    for (long i = 0; i < model->layers; i++) {
        const Layer *layer = model->layer + i;
        heads = larger(heads, model->heads / layer->kv_heads);
        size = larger(size, layer->size);
        asked = larger(asked, model->heads / layer->kv_heads * layer->size);
    }
    long spans = (size + SPAN - 1) / SPAN;
    long queries = (ROWS_TOGETHER * heads + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    long step = tile_step(longest);
    Desk found = {.scores = taken(room, used, queries * step * sizeof(float))};
    found.weights = taken(room, used, larger(queries, HEADS_TOGETHER) * step * sizeof(Factor));
    if (tiled) {
        found.queries = taken(room, used, queries * spans * SPAN * sizeof(Number));
        found.values = taken(room, used, step / SPAN * SPAN_VALUES * sizeof(Number));
        found.turned = taken(room, used, spans * LANES * sizeof *found.turned);
    } else {
        long turned = (size + NUMBERS - 1) / NUMBERS * LANES * BLOCKS_TOGETHER;
        found.factors = taken(room, used, ROWS_TOGETHER * asked * sizeof(Factor));
        found.pairs = taken(room, used, turned * sizeof *found.pairs);
    }
    if (room)
        *desk = found;
}

/* Bytes of room that any product of a model takes. */
static long most_room(const Model *model, long rows)
{
    long most = larger(room_for(&model->head, rows), room_for(&model->shown, rows));
    most = larger(most, room_for(&model->per_layer_product, rows));
    for (long i = 0; i < model->layers; i++) {
        const Product *products[LAYER_PRODUCTS];
        products_of(model->layer + i, products);
        for (long each = 0; each < LAYER_PRODUCTS; each++)
            most = larger(most, room_for(products[each], rows));
        const Experts *experts = model->layer[i].experts;
        if (!experts)
            continue;
        most = larger(most, room_for(&experts->router, rows));
        for (long expert = 0; expert < experts->count; expert++) {
            most = larger(most, room_for(experts->gate_up + expert, rows));
            most = larger(most, room_for(experts->down + expert, rows));
        }
    }
    return most;
}

/* Room for rows that are multiplied. */
static void lay_products(Products *products, long rows, long inputs, char *room, size_t *used)
{
    products->laid_step = laid_bytes(0, inputs);
    products->laid = taken(room, used, rows * products->laid_step);
    products->scales = taken(room, used, rows * sizeof *products->scales);
}

/* Room for what experts do with rows, where any layer has such. */
static void lay_mixing(Mixing *mixing, const Model *model, long rows, char *room, size_t *used)
{
    long most = 0, inner = 0, places = 0;
    for (long i = 0; i < model->layers; i++) {
        const Experts *experts = model->layer[i].experts;
        if (!experts)
            continue;
        most = larger(most, experts->count);
        places = larger(places, rows * experts->chosen);
        inner = larger(inner, experts->down->in);
    }
    mixing->gate = &model->gate;
    mixing->hidden = model->hidden;
    mixing->in_step = larger(model->hidden, inner);
    mixing->out_step = larger(model->hidden, 2 * inner);
    mixing->which = taken(room, used, places * sizeof *mixing->which);
    mixing->places = taken(room, used, places * sizeof *mixing->places);
    mixing->weights = taken(room, used, places * sizeof *mixing->weights);
    mixing->from = taken(room, used, places * sizeof *mixing->from);
    mixing->shares = taken(room, used, (places ? rows : 0) * sizeof *mixing->shares);
    mixing->in = taken(room, used, places * mixing->in_step * sizeof *mixing->in);
    mixing->out = taken(room, used, places * mixing->out_step * sizeof *mixing->out);
    mixing->groups = taken(room, used, most * sizeof *mixing->groups);
    lay_products(&mixing->products, places, mixing->in_step, room, used);
}

/* Lays a pass out in a room, or only says how many bytes it takes. */
static size_t lay_out(Pass *pass, char *room)
{
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    long rows = batch->rows, seen = 0, keys = 0, scores = 0, longest = 0, joined = 0, mixed = 0;
    for (long run = 0; run < batch->runs; run++) {
        long count = batch->starts[run + 1] - batch->starts[run];
        longest = larger(longest, batch->positions[run] + count - 1);
        joined += tail_of(batch, run) ? batch->lengths[run] + tail_of(batch, run) : 0;
    }
    for (long i = 0; i < model->layers; i++) {
        const Layer *layer = model->layer + i;
        seen = larger(seen, layer->out.in);
        keys = larger(keys, layer->out.in + slot_size(layer));
        scores = larger(scores, layer->experts ? layer->experts->router.out : 0);
        mixed = layer->experts && layer->experts->norms.experts ? rows : mixed;
    }
    pass->latent_step = model->layer->latent.out; /* in this all layers are alike */
    pass->a_step = larger(larger(seen, model->layer->qkv.in), model->inner);
    pass->a_step = larger(pass->a_step, larger(model->layer->latent.in, pass->latent_step));
    pass->a_step = larger(pass->a_step, model->per_layer_size);
    pass->y_step = larger(keys, larger(larger(2 * model->inner, model->hidden), scores));
    pass->y_step = larger(pass->y_step, larger(pass->latent_step, 2 * model->per_layer_size));
    long per_layer = model->layers * model->per_layer_size;
    size_t used = 0;
    pass->x = taken(room, &used, rows * model->hidden * sizeof *pass->x);
    pass->y = taken(room, &used, rows * pass->y_step * sizeof *pass->y);
    pass->a = taken(room, &used, rows * pass->a_step * sizeof *pass->a);
    pass->latents = taken(room, &used, rows * pass->latent_step * sizeof *pass->latents);
    pass->per_layer = taken(room, &used, rows * per_layer * sizeof *pass->per_layer);
    pass->wanted_x = taken(room, &used, batch->wanted_rows * model->hidden * sizeof *pass->x);
    pass->wanted_a = taken(room, &used, batch->wanted_rows * pass->a_step * sizeof *pass->a);
    pass->queries = taken(room, &used, rows * seen * sizeof *pass->queries);
    lay_products(&pass->products, rows, larger(pass->a_step, model->shown.in), room, &used);
    lay_mixing(&pass->mixing, model, rows, room, &used);
    pass->mixed = taken(room, &used, mixed * model->hidden * sizeof *pass->mixed);
    pass->positions = taken(room, &used, rows * sizeof *pass->positions);
    pass->slots = taken(room, &used, rows * sizeof *pass->slots);
    pass->joined = taken(room, &used, joined * sizeof *pass->joined);
    pass->stretches = taken(room, &used, rows * sizeof *pass->stretches);
    pass->row_tables = taken(room, &used, rows * sizeof *pass->row_tables);
    pass->places = taken(room, &used, rows * sizeof *pass->places);
    pass->row_numbers = taken(room, &used, rows * sizeof *pass->row_numbers);
    pass->row_positions = taken(room, &used, rows * sizeof *pass->row_positions);
    pass->row_lengths = taken(room, &used, rows * sizeof *pass->row_lengths);
    Products *products = &pass->products, *of_experts = &pass->mixing.products;
    products->tiled = of_experts->tiled = pass->tiled;
    products->room_step = of_experts->room_step = most_room(model, rows);
    products->rooms = taken(room, &used, pass->threads * products->room_step);
    of_experts->rooms = products->rooms;
    long drawn = batch->drawings ? 2 * pass->threads * model->head.out : 0;
    pass->drawn = taken(room, &used, drawn * sizeof *pass->drawn);
    pass->desks = taken(room, &used, pass->threads * sizeof *pass->desks);
    for (int thread = 0; thread < pass->threads; thread++)
        lay_desk(pass->desks + thread, model, pass->tiled, longest, room, &used);
    return used;
}

#endif
