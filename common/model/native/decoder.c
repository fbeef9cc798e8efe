/* Runs batches through a model, pass by pass: see `decoder.h`. */

#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "experts.h"
#include "pass.h"
#include "product.h"
#include "steps.h"
#include "tiles.h"
#include "workers.h"

/* Memory that grows. */
typedef struct {
    void *at;
    size_t bytes;
} Room;

struct Decoder {
    Workers *workers;
    int threads, most_threads; /* of a pass, and of a large one */
    int tiled;                 /* whether products go through the processor's tiles */
    int64_t shared_cache;      /* bytes of the cache that processors share */
    Room room, words;          /* of passes, and of batches cut into parts */
    Room own[];                /* [most_threads]: of passes in one thread */
};

/* Room for so many bytes; NULL where there is no memory. */
static void *roomy(Room *room, size_t bytes)
{
    if (!room->at || bytes > room->bytes) {
        free(room->at);
        room->at = aligned_alloc(64, bytes / 64 * 64 + 64);
        room->bytes = room->at ? bytes : 0;
    }
    return room->at;
}

int decoder_supported(void)
{
    return processor_fits();
}

int decoder_has_tiles(void)
{
    return decoder_supported() && tiles_work();
}

int decoder_slice(void)
{
    return SLICE * LANES;
}

Decoder *decoder_open(int threads, int most_threads, int tiled, int64_t shared_cache)
{
    Decoder *decoder = calloc(1, sizeof *decoder + most_threads * sizeof *decoder->own);
    if (!decoder)
        return NULL;
    decoder->threads = threads;
    decoder->most_threads = most_threads;
    decoder->tiled = tiled && decoder_has_tiles();
    decoder->shared_cache = shared_cache;
    decoder->workers = workers_start(most_threads);
    if (!decoder->workers) {
        free(decoder);
        return NULL;
    }
    return decoder;
}

void decoder_close(Decoder *decoder)
{
    workers_stop(decoder->workers);
    free(decoder->room.at);
    free(decoder->words.at);
    for (int thread = 0; thread < decoder->most_threads; thread++)
        free(decoder->own[thread].at);
    free(decoder);
}

/* Multiplies rows by a matrix; what comes out goes to others or is added to them. */
static void product(Decoder *decoder, Pass *pass, const Product *by, long count, const Number *from,
                    long from_step, float *to, long to_step, int adds)
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
    run_products(decoder->workers, pass->threads, products);
}

/* Queries, keys and values of all heads, by way of latents. */
static void make_heads_of_latents(Decoder *decoder, Pass *pass)
{
    const Layer *layer = pass->layer;
    long step = pass->latent_step;
    product(decoder, pass, &layer->latent, pass->rows, pass->a, pass->a_step, pass->y,
            pass->y_step, 0);
    workers_run(decoder->workers, pass->threads, norm_latents, pass);
    product(decoder, pass, &layer->qkv, pass->rows, layer->q_latent ? pass->latents : pass->a,
            layer->q_latent ? step : pass->a_step, pass->y, pass->y_step, 0);
    product(decoder, pass, &layer->kv, pass->rows, pass->latents + layer->q_latent, step,
            pass->y + layer->qkv.out, pass->y_step, 0);
}

/* What rows are seen as, and look by: fills the layer's cache, and queries. */
static void write_keys(Decoder *decoder, Pass *pass)
{
    Workers *workers = decoder->workers;
    workers_run(workers, pass->threads, norm_attention, pass);
    if (pass->layer->latent.out)
        make_heads_of_latents(decoder, pass);
    else
        product(decoder, pass, &pass->layer->qkv, pass->rows, pass->a, pass->a_step, pass->y,
                pass->y_step, 0);
    workers_run(workers, pass->threads, turn, pass);
}

/* Goes on with wanted rows alone. */
static void leave_others(Decoder *decoder, Pass *pass)
{
    workers_run(decoder->workers, pass->threads, keep_wanted, pass);
    pass->x = pass->wanted_x;
    pass->a = pass->wanted_a;
    pass->rows = pass->batch->wanted_rows;
}

/* Adds to `x` what a product makes of rows, or its norm. */
static void add(Decoder *decoder, Pass *pass, const Product *by, const float *post_norm)
{
    if (!post_norm) {
        product(decoder, pass, by, pass->rows, pass->a, pass->a_step, pass->x,
                pass->model->hidden, 1);
        return;
    }
    product(decoder, pass, by, pass->rows, pass->a, pass->a_step, pass->y, pass->y_step, 0);
    pass->post_norm = post_norm;
    workers_run(decoder->workers, pass->threads, add_normed, pass);
}

/* Adds to `x` what a layer's experts make of rows, or its norm. */
static void mix(Decoder *decoder, Pass *pass)
{
    Mixing *mixing = &pass->mixing;
    mixing->by = pass->layer->experts;
    product(decoder, pass, &mixing->by->router, pass->rows, pass->a, pass->a_step, pass->y,
            pass->y_step, 0);
    mixing->rows = pass->rows;
    mixing->a = pass->a;
    mixing->a_step = pass->a_step;
    mixing->scores = pass->y;
    mixing->scores_step = pass->y_step;
    pass->post_norm = pass->layer->mlp_post_norm;
    mixing->adds = !pass->post_norm;
    mixing->to = mixing->adds ? pass->x : pass->y;
    mixing->to_step = mixing->adds ? pass->model->hidden : pass->y_step;
    run_experts(decoder->workers, pass->threads, mixing);
    if (pass->post_norm)
        workers_run(decoder->workers, pass->threads, add_normed, pass);
}

/* What a feed-forward part makes of rows: adds to `x`. */
static void run_plain(Decoder *decoder, Pass *pass)
{
    const Layer *layer = pass->layer;
    product(decoder, pass, &layer->gate_up, pass->rows, pass->a, pass->a_step, pass->y,
            pass->y_step, 0);
    workers_run(decoder->workers, pass->threads, gate, pass);
    add(decoder, pass, &layer->down, layer->experts ? NULL : layer->mlp_post_norm);
}

/* What rows make of it: adds to `x`. */
static void run_mlp(Decoder *decoder, Pass *pass)
{
    Workers *workers = decoder->workers;
    const Layer *layer = pass->layer;
    add(decoder, pass, &layer->out, layer->attention_post_norm);
    workers_run(workers, pass->threads, norm_mlp, pass);
    if (layer->experts)
        mix(decoder, pass);
    if (layer->gate_up.out)
        run_plain(decoder, pass);
}

/* What rows of a drafting head begin with. */
static void begin_draft(Decoder *decoder, Pass *pass)
{
    const Model *model = pass->model;
    workers_run(decoder->workers, pass->threads, norm_tokens, pass);
    if (pass->batch->shown)
        product(decoder, pass, &model->shown, pass->rows, pass->batch->shown, model->shown.in,
                pass->x, model->hidden, 0);
    if (model->given_norm)
        workers_run(decoder->workers, pass->threads, norm_given, pass);
}

/* Runs a pass that is laid out. */
static void run_pass(Decoder *decoder, Pass *pass)
{
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    pass->stretch_count = stretched(batch, pass);
    workers_run(decoder->workers, pass->threads, embed, pass);
    if (model->token_norm)
        begin_draft(decoder, pass);
    long taps = batch->features ? model->taps : 0;
    for (long layer = 0, tap = 0; layer < model->layers; layer++) {
        pass->layer = model->layer + layer;
        int tapped = tap < taps && model->tapped[tap] == layer;
        pass->tapped = tapped ? batch->features + tap++ * model->hidden : NULL;
        int last = layer == model->layers - 1;
        write_keys(decoder, pass);
        if (last && !batch->wanted_rows) /* pieces of prompts, which are only to be seen */
            return;
        workers_run(decoder->workers, pass->threads, look, pass);
        if (last) /* others are only seen, and nobody looks at them again */
            leave_others(decoder, pass);
        run_mlp(decoder, pass);
    }
    workers_run(decoder->workers, pass->threads, norm_states, pass);
    product(decoder, pass, &model->head, batch->wanted_rows, batch->states, model->hidden,
            batch->logits, model->head.out, 0);
    if (model->head_softcap)
        workers_run(decoder->workers, pass->threads, cap_logits, pass);
    if (batch->chosen)
        workers_run(decoder->workers, pass->threads, choose, pass);
}

/* Runs a batch that is in range by so many threads. */
static int run_by(Decoder *decoder, const Model *model, const Batch *batch, int threads, Room *room)
{
    Pass pass = {.model = model, .batch = batch, .rows = batch->rows, .tiled = decoder->tiled,
                 .threads = threads};
    char *at = roomy(room, lay_out(&pass, NULL));
    if (!at)
        return OUT_OF_MEMORY;
    lay_out(&pass, at);
    run_pass(decoder, &pass);
    return 0;
}

int run_alone(Decoder *decoder, const Model *model, const Batch *batch, int thread)
{
    if (!in_range(model, batch))
        return OUT_OF_RANGE;
    return run_by(decoder, model, batch, 1, decoder->own + thread);
}

int threads_of(const Decoder *decoder, const Batch *batch)
{
    return batch->large ? decoder->most_threads : decoder->threads;
}

long parts_of(Decoder *decoder, const Model *model, const Batch *batch, Batch *parts)
{
    long count = 1, threads = threads_of(decoder, batch);
    if (threads > 1 && !decoder->tiled) { /* tiles are for more rows than a part would have */
        int64_t *words = roomy(&decoder->words, apart_words(batch, threads) * sizeof *words);
        count = words ? cut_apart(model, batch, threads, decoder->shared_cache, parts, words) : 1;
    }
    if (count == 1)
        parts[0] = *batch;
    return count;
}

void run_each(Decoder *decoder, long count, Task *task, void *what)
{
    workers_run_parts(decoder->workers, (int)count, (int)count, task, what);
}

/* Parts of a batch, and what comes of each. */
typedef struct {
    Decoder *decoder;
    const Model *model;
    const Batch *parts;
    int *status;
} Apart;

static void run_part(void *what, Part part)
{
    Apart *apart = what;
    const Batch *batch = apart->parts + part.index;
    apart->status[part.index] = run_alone(apart->decoder, apart->model, batch, part.index);
}

int run_batch(Decoder *decoder, const Model *model, const Batch *batch)
{
    int threads = threads_of(decoder, batch);
    if (!in_range(model, batch))
        return OUT_OF_RANGE;
    Batch parts[threads];
    int status[threads];
    long count = parts_of(decoder, model, batch, parts);
    if (count == 1)
        return run_by(decoder, model, batch, threads, &decoder->room);
    Apart apart = {decoder, model, parts, status};
    run_each(decoder, count, run_part, &apart);
    for (long i = 0; i < count; i++)
        if (status[i])
            return status[i];
    return 0;
}

int decoder_run(Decoder *decoder, const Model *model, const Request *request)
{
    Batch batch = batch_of(request);
    return run_batch(decoder, model, &batch);
}

int decoder_move(Decoder *decoder, const Model *model, long count, const int64_t *from,
                 const int64_t *to)
{
    long most = 0;
    for (long layer = 0; layer < model->layers; layer++)
        most = larger(most, slot_size(model->layer + layer));
    for (long i = 0; i < count; i++)
        if (from[i] < 0 || from[i] >= model->slots || to[i] < 0 || to[i] >= model->slots)
            return OUT_OF_RANGE;
    Number *held = roomy(&decoder->room, count * most * sizeof *held);
    if (!held)
        return OUT_OF_MEMORY;
    for (long layer = 0; layer < model->layers; layer++) {
        Number *cache = model->layer[layer].cache;
        long width = slot_size(model->layer + layer);
        for (long i = 0; i < count; i++)
            memcpy(held + i * width, cache + from[i] * width, width * sizeof *held);
        for (long i = 0; i < count; i++)
            memcpy(cache + to[i] * width, held + i * width, width * sizeof *held);
    }
    return 0;
}

/* Lays products of rows out in a room, or only says how many bytes they take. */
static size_t lay_stack(Products *stack, long rows, int threads, char *room)
{
    size_t used = 0;
    lay_products(stack, rows, stack->from_step, room, &used);
    stack->rooms = taken(room, &used, threads * stack->room_step);
    return used;
}

int decoder_multiply(Decoder *decoder, const Product *products, long count, long rows,
                     const Number *x, float *y)
{
    Group groups[count];
    Products stack = {.groups = groups, .group_count = count, .from = x, .from_step = products->in,
                      .to = y, .to_step = products->out, .tiled = decoder->tiled};
    for (long i = 0; i < count; i++) {
        groups[i] = (Group){products + i, i * rows, rows};
        stack.room_step = larger(stack.room_step, room_for(products + i, rows));
    }
    char *room = roomy(&decoder->room, lay_stack(&stack, count * rows, decoder->threads, NULL));
    if (!room)
        return OUT_OF_MEMORY;
    lay_stack(&stack, count * rows, decoder->threads, room);
    run_products(decoder->workers, decoder->threads, &stack);
    return 0;
}
