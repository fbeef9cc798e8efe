/* One pass of a batch through a model: see `decoder.h`.

   Residuals, norms, scores and sums are float32; what products read and what the cache holds are
   numbers of the decoder's type. A row's arithmetic depends on that row and on the keys it sees
   alone. */

#include "decoder.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "attention_by_vectors.h"
#include "experts.h"
#include "gate.h"
#include "pick.h"
#include "product.h"
#include "tiles.h"
#include "vector.h"
#include "workers.h"

#define FETCHED_MEANWHILE 1000000 /* bytes of weights during attention; second caches hold them */

/* A pass; all threads go through its steps together. */
typedef struct {
    const Model *model;
    const Batch *batch;
    const Layer *layer;
    const float *post_norm;               /* of what is added to `x` next */
    Products products;                    /* of all rows, where no experts are at work */
    float *x;                             /* residuals, [rows, hidden] */
    Number *tapped;                       /* where those that enter the layer go, a row of them
                                             `taps` further each; or NULL */
    float *y;                             /* what a product made, [rows, y_step] */
    Number *a;                            /* what a product reads, [rows, a_step] */
    float *wanted_x;                      /* both of wanted rows alone */
    Number *wanted_a;
    Number *queries;                      /* [rows, heads * size] */
    int64_t *positions, *slots;           /* [rows]; of the latter, where keys are written */
    int64_t *joined;                      /* tables with their tails, of runs that have one */
    Stretch *stretches;                   /* [stretch_count] */
    const int64_t **row_tables;           /* [rows], in the order of runs, as those below */
    int64_t *row_positions, *row_lengths;
    Desk *desks;                          /* [threads] */
    Mixing mixing;                        /* of a layer with experts */
    float *drawn;                         /* for draws, [threads, 2 * vocab] */
    long rows;                            /* that go on */
    long y_step, a_step, stretch_count;
    int threads, tiled;
} Pass;

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

/* 1 / rms(x). */
static float inverse_rms(const float *x, long size, float epsilon)
{
    Floats squares = every(0.0f);
    for (long at = 0; at < size; at += LANES) {
        Floats part = load(first_lanes(size - at), x + at);
        squares = fmadd(part, part, squares);
    }
    return 1.0f / sqrtf(sum_of(squares) / size + epsilon);
}

/* x / rms(x) * weight. */
static void normed(const float *x, const float *weight, long size, float epsilon, Number *out)
{
    Floats inverse = every(inverse_rms(x, size, epsilon));
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store_number(out + at, mask, load(mask, x + at) * inverse * load(mask, weight + at));
    }
}

/* x times a scale as numbers. */
static void rounded(const float *x, float scale, long size, Number *out)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store_number(out + at, mask, load(mask, x + at) * every(scale));
    }
}

/* Turns one head by its position, as `rotate_half` does; normed before where the model does so, by
   what its own numbers say or all heads'. */
static void turned(const Model *model, const Layer *layer, const float *norm, float whole,
                   long position, const float *head, Number *out)
{
    long size = model->size, half = size / 2;
    const float *cos = layer->cos + position * half, *sin = layer->sin + position * half;
    float scaled[size], inverse = whole;
    if (norm && !model->whole_norms)
        inverse = inverse_rms(head, size, model->epsilon);
    for (long i = 0; i < size; i++)
        scaled[i] = norm ? head[i] * inverse * norm[i] : head[i];
    for (long at = 0; at < half; at += LANES) {
        Lanes mask = first_lanes(half - at);
        Floats first = load(mask, scaled + at), second = load(mask, scaled + half + at);
        Floats cosine = load(mask, cos + at), sine = load(mask, sin + at);
        store_number(out + at, mask, fnmadd(second, sine, first * cosine));
        store_number(out + half + at, mask, fmadd(first, sine, second * cosine));
    }
}

static void embed(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    long hidden = model->hidden;
    Floats scale = every(model->embedding_scale);
    PART_OF(pass->rows)
        for (long at = 0; at < hidden; at += LANES) {
            Lanes mask = first_lanes(hidden - at);
            const Number *from = model->embeddings + pass->batch->ids[i] * hidden + at;
            store(pass->x + i * hidden + at, mask, load_number(from, mask) * scale);
        }
}

/* Norms embeddings for the layer of a drafting head, which reads them beside its rows, and has
   these begin with what is given. */
static void norm_tokens(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    const float *given = pass->batch->given;
    long hidden = model->hidden;
    PART_OF(pass->rows) {
        float *x = pass->x + i * hidden;
        normed(x, model->token_norm, hidden, model->epsilon, pass->a + i * pass->a_step + hidden);
        if (given)
            memcpy(x, given + i * hidden, hidden * sizeof *x);
    }
}

static void norm_given(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    PART_OF(pass->rows) {
        float *x = pass->x + i * model->hidden;
        float inverse = inverse_rms(x, model->hidden, model->epsilon);
        for (long at = 0; at < model->hidden; at++)
            x[at] *= inverse * model->given_norm[at];
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

/* 1 / rms of all heads of a row, where they are normed by that. */
static float whole_rms(const Model *model, const float *norm, const float *heads, long count)
{
    int whole = norm && model->whole_norms;
    return whole ? inverse_rms(heads, count * model->size, model->epsilon) : 1.0f;
}

/* Queries, and what the cache keeps of every row. */
static void turn(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    const Layer *layer = pass->layer;
    long size = model->size, heads = model->heads, kv_heads = model->kv_heads;
    long step = model->whole_norms ? size : 0; /* of norms, from head to head */
    PART_OF(pass->rows) {
        const float *row = pass->y + i * pass->y_step;
        const float *keys = row + heads * size, *values = keys + kv_heads * size;
        const float *q_norm = layer->q_norm, *k_norm = layer->k_norm;
        float whole = whole_rms(model, q_norm, row, heads);
        long position = pass->positions[i];
        for (long head = 0; head < heads; head++)
            turned(model, layer, q_norm ? q_norm + head * step : NULL, whole, position,
                   row + head * size, pass->queries + (i * heads + head) * size);
        whole = whole_rms(model, k_norm, keys, kv_heads);
        Number *slot = layer->cache + pass->slots[i] * kv_heads * 2 * size;
        for (long head = 0; head < kv_heads; head++, slot += 2 * size) {
            turned(model, layer, k_norm ? k_norm + head * step : NULL, whole, position,
                   keys + head * size, slot);
            for (long at = 0; at < size; at += LANES) {
                Lanes mask = first_lanes(size - at);
                store_number(slot + size + at, mask, load(mask, values + head * size + at));
            }
        }
    }
}

/* The view that a number names: all heads of one stretch after another. */
static View numbered(const Pass *pass, long i)
{
    long heads = pass->model->kv_heads;
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
    PART_OF(pass->stretch_count * model->kv_heads) {
        int first = !next.stretch;
        View view = first ? numbered(pass, i) : next;
        next = i + 1 < end ? numbered(pass, i + 1) : view;
        if (pass->tiled) {
            attend_by_tiles(model, pass->layer, view.kv_head, view.stretch, pass->queries, pass->a,
                            pass->a_step, desk, &ahead);
            continue;
        }
        if (FETCHED_BEFORE && first)
            fetch_first(model, pass->layer, &view);
        attend_by_vectors(model, pass->layer, &view, i + 1 < end ? &next : NULL, pass->queries,
                          pass->a, pass->a_step, desk);
    }
}

static void norm_mlp(void *what, Part part)
{
    Pass *pass = what;
    PART_OF(pass->rows)
        read_by(pass, i, pass->layer->mlp_norm);
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
            Floats norm = load(mask, y + at) * inverse * load(mask, pass->post_norm + at);
            store(x + at, mask, load(mask, x + at) + norm);
        }
    }
}

static void gate(void *what, Part part)
{
    Pass *pass = what;
    const Layer *layer = pass->layer;
    long inner = layer->gate_up.out / 2;
    int weighed = layer->experts && layer->experts->router.out > layer->experts->count;
    PART_OF(pass->rows) {
        float *both = pass->y + i * pass->y_step;
        for (long at = 0; weighed && at < inner; at++)
            both[inner + at] *= pass->mixing.shares[i];
        gated(pass->model->gelu, both, inner, pass->a + i * pass->a_step);
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
    long hidden = pass->model->hidden, seen = pass->model->heads * pass->model->size;
    PART_OF(pass->batch->wanted_rows) {
        long row = pass->batch->wanted[i];
        memcpy(pass->wanted_x + i * hidden, pass->x + row * hidden, hidden * sizeof *pass->x);
        memcpy(pass->wanted_a + i * pass->a_step, pass->a + row * pass->a_step,
               seen * sizeof *pass->a);
    }
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

Batch batch_of(const Request *request)
{
    const int64_t *words = request->words;
    Batch batch = {.rows = words[0], .wanted_rows = words[1], .runs = words[2], .large = words[3],
                   .logits = request->logits, .states = request->states,
                   .features = request->features, .shown = request->shown,
                   .given = request->given, .left = request->left, .drawings = request->drawings};
    batch.ids = words + 4;
    batch.ordered = batch.ids + batch.rows;
    batch.starts = batch.ordered + batch.rows;
    batch.positions = batch.starts + batch.runs + 1;
    batch.tables = (const int64_t *const *)(batch.positions + batch.runs);
    batch.lengths = batch.positions + 2 * batch.runs;
    batch.tails = batch.lengths + batch.runs;
    batch.behind = batch.tails + batch.runs + 1;
    batch.wanted = batch.behind + batch.tails[batch.runs];
    batch.chosen = request->words + (batch.wanted - words) + batch.wanted_rows;
    return batch;
}

int64_t slot_of(const Batch *batch, long run, long position)
{
    long further = position - batch->lengths[run];
    return further < 0 ? batch->tables[run][position] : batch->behind[batch->tails[run] + further];
}

static long tail_of(const Batch *batch, long run)
{
    return batch->tails[run + 1] - batch->tails[run];
}

/* Whether all that a run names is there. */
static int run_in_range(const Model *model, const Batch *batch, long run)
{
    long start = batch->starts[run], count = batch->starts[run + 1] - start;
    long first = batch->positions[run], end = first + count;
    if (first < 0 || end > model->positions || end > batch->lengths[run] + tail_of(batch, run))
        return 0;
    for (long i = 0; i < count; i++) {
        int64_t row = batch->ordered[start + i], slot = slot_of(batch, run, first + i);
        if (row < 0 || row >= batch->rows || slot < 0 || slot >= model->slots)
            return 0;
    }
    return 1;
}

/* Whether all that a batch names is there. */
int in_range(const Model *model, const Batch *batch)
{
    for (long row = 0; row < batch->rows; row++)
        if (batch->ids[row] < 0 || batch->ids[row] >= model->vocab)
            return 0;
    if (batch->starts[0] != 0 || batch->starts[batch->runs] != batch->rows)
        return 0;
    if (batch->wanted_rows > batch->rows) /* they take the room of rows */
        return 0;
    for (long run = 0; run < batch->runs; run++)
        if (!run_in_range(model, batch, run))
            return 0;
    for (long i = 0; i < batch->wanted_rows; i++)
        if (batch->wanted[i] < 0 || batch->wanted[i] >= batch->rows)
            return 0;
    return 1;
}

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

/* Lays runs out row by row and cuts them into stretches of rows that begin with the same key, as
   those of one sequence do; returns how many there are. */
static long stretched(const Batch *batch, Pass *pass)
{
    long count = 0;
    int64_t *room = pass->joined;
    Stretch *last = NULL;
    for (long run = 0; run < batch->runs; run++) {
        const int64_t *table = joined(batch, run, &room);
        long start = batch->starts[run], end = batch->starts[run + 1];
        for (long at = start; at < end; at++) {
            long position = batch->positions[run] + at - start, row = batch->ordered[at];
            pass->positions[row] = pass->row_positions[at] = position;
            pass->slots[row] = table[position];
            pass->row_tables[at] = table;
            pass->row_lengths[at] = batch->positions[run] + end - start;
            if (!last || last->count == ROWS_TOGETHER || last->tables[0][0] != table[0]) {
                last = pass->stretches + count++;
                *last = (Stretch){batch->ordered + at, pass->row_positions + at,
                                  pass->row_tables + at, pass->row_lengths + at, 0, 0};
            }
            last->count++;
        }
    }
    for (long i = 0; pass->tiled && i < count; i++)
        pass->stretches[i].agreed = agreed(pass->stretches + i);
    return count;
}

/* Takes a piece of room; only counts where there is none. */
static void *taken(char *room, size_t *used, size_t bytes)
{
    void *piece = room ? room + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return piece;
}

/* Lays a desk out in a room; see `taken`. */
static void lay_desk(Desk *desk, const Model *model, int tiled, long longest, char *room,
                     size_t *used)
{
    long heads = model->heads / model->kv_heads, spans = (model->size + SPAN - 1) / SPAN;
    long queries = (ROWS_TOGETHER * heads + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    long step = tile_step(longest);
    Desk found = {.scores = taken(room, used, queries * step * sizeof(float))};
    found.weights = taken(room, used, larger(queries, HEADS_TOGETHER) * step * sizeof(Factor));
    if (tiled) {
        found.queries = taken(room, used, queries * spans * SPAN * sizeof(Number));
        found.values = taken(room, used, step / SPAN * SPAN_VALUES * sizeof(Number));
        found.turned = taken(room, used, spans * LANES * sizeof *found.turned);
    } else {
        long turned = (model->size + NUMBERS - 1) / NUMBERS * LANES * BLOCKS_TOGETHER;
        found.factors = taken(room, used, ROWS_TOGETHER * heads * model->size * sizeof(Factor));
        found.pairs = taken(room, used, turned * sizeof *found.pairs);
    }
    if (room)
        *desk = found;
}

/* Bytes of room that any product of a model takes. */
static long most_room(const Model *model, long rows)
{
    long most = larger(room_for(&model->head, rows), room_for(&model->shown, rows));
    for (long i = 0; i < model->layers; i++) {
        const Layer *layer = model->layer + i;
        const Product *products[] = {&layer->qkv, &layer->out, &layer->gate_up, &layer->down};
        for (int each = 0; each < 4; each++)
            most = larger(most, room_for(products[each], rows));
        const Experts *experts = layer->experts;
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
    mixing->gelu = model->gelu;
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
    long rows = batch->rows, seen = model->heads * model->size, longest = 0, joined = 0;
    long scores = 0;
    for (long run = 0; run < batch->runs; run++) {
        long count = batch->starts[run + 1] - batch->starts[run];
        longest = larger(longest, batch->positions[run] + count - 1);
        joined += tail_of(batch, run) ? batch->lengths[run] + tail_of(batch, run) : 0;
    }
    for (long i = 0; i < model->layers; i++)
        scores = larger(scores, model->layer[i].experts ? model->layer[i].experts->router.out : 0);
    pass->a_step = larger(larger(seen, model->layer->qkv.in), model->inner);
    pass->y_step = larger(seen + 2 * model->kv_heads * model->size,
                          larger(larger(2 * model->inner, model->hidden), scores));
    size_t used = 0;
    pass->x = taken(room, &used, rows * model->hidden * sizeof *pass->x);
    pass->y = taken(room, &used, rows * pass->y_step * sizeof *pass->y);
    pass->a = taken(room, &used, rows * pass->a_step * sizeof *pass->a);
    pass->wanted_x = taken(room, &used, batch->wanted_rows * model->hidden * sizeof *pass->x);
    pass->wanted_a = taken(room, &used, batch->wanted_rows * pass->a_step * sizeof *pass->a);
    pass->queries = taken(room, &used, rows * seen * sizeof *pass->queries);
    lay_products(&pass->products, rows, larger(pass->a_step, model->shown.in), room, &used);
    lay_mixing(&pass->mixing, model, rows, room, &used);
    pass->positions = taken(room, &used, rows * sizeof *pass->positions);
    pass->slots = taken(room, &used, rows * sizeof *pass->slots);
    pass->joined = taken(room, &used, joined * sizeof *pass->joined);
    pass->stretches = taken(room, &used, rows * sizeof *pass->stretches);
    pass->row_tables = taken(room, &used, rows * sizeof *pass->row_tables);
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

/* What rows are seen as, and look by: fills the layer's cache, and queries. */
static void write_keys(Decoder *decoder, Pass *pass)
{
    Workers *workers = decoder->workers;
    workers_run(workers, pass->threads, norm_attention, pass);
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
    long width = model->kv_heads * 2 * model->size;
    for (long i = 0; i < count; i++)
        if (from[i] < 0 || from[i] >= model->slots || to[i] < 0 || to[i] >= model->slots)
            return OUT_OF_RANGE;
    Number *held = roomy(&decoder->room, count * width * sizeof *held);
    if (!held)
        return OUT_OF_MEMORY;
    for (long layer = 0; layer < model->layers; layer++) {
        Number *cache = model->layer[layer].cache;
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
