/* Runs batches through a model, pass by pass: see `decoder.h`. */

#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "layers.h"
#include "pass.h"
#include "product.h"
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

/* Runs a batch that is in range by so many threads. */
static int run_by(Decoder *decoder, const Model *model, const Batch *batch, int threads, Room *room)
{
    Pass pass = {.model = model, .batch = batch, .rows = batch->rows, .tiled = decoder->tiled,
                 .workers = decoder->workers, .threads = threads};
    char *at = roomy(room, lay_out(&pass, NULL));
    if (!at)
        return OUT_OF_MEMORY;
    lay_out(&pass, at);
    run_pass(&pass);
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
        if (model->layer[layer].shares) /* what has been moved by now */
            continue;
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
