/* Attention by the processor's tile registers (AMX).

   The queries of a stretch, those of all its rows and heads, are the rows of tiles, sixteen to a
   tile. Their scores with sixteen keys are one tile; a tile of weights is over 32 positions, and
   between the two every query is softened by itself. A position that a query does not see has
   weight 0, and adds nothing: so sums are in order of position, and a query's own, whatever else
   is in its tile. */

#ifndef PACELINE_ATTENTION_BY_TILES_H
#define PACELINE_ATTENTION_BY_TILES_H

#include "attention_of_few.h"
#include "by_tiles.h"

#define FEW_QUERIES 8 /* that are faster by vectors */

/* Which tile has what. */
#define SUMS 0
#define MORE_SUMS 1
#define LEFT 2
#define RIGHT 3
#define MORE_RIGHT 4

/* Rows of a stretch whose tables are the same as far as each goes. */
typedef struct {
    long first, end;
    long longest;              /* whose table goes farthest */
    long first_tile, end_tile; /* that their queries are in */
} Alike;

static Alike rows_alike(const Sight *sight, long first, long end)
{
    Alike found = {.first = first, .end = end, .longest = first};
    for (long row = first; row < end; row++)
        if (sight->stretch->lengths[row] > sight->stretch->lengths[found.longest])
            found.longest = row;
    found.first_tile = first * sight->heads / TILE_ROWS;
    found.end_tile = (end * sight->heads + TILE_ROWS - 1) / TILE_ROWS;
    return found;
}

/* Those that have the table of a row, from it on. */
static Alike alike_from(const Sight *sight, long first)
{
    const Stretch *stretch = sight->stretch;
    long end = first + 1;
    while (end < stretch->count && stretch->tables[end] == stretch->tables[first])
        end++;
    return rows_alike(sight, first, end);
}

AMX static void shape_attention(long queries)
{
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        int by_query = tile == SUMS || tile == MORE_SUMS || tile == LEFT;
        shapes.bytes[tile] = TILE_LINE;
        shapes.rows[tile] = by_query && queries < TILE_ROWS ? queries : TILE_ROWS;
    }
    _tile_loadconfig(&shapes);
}

/* Queries side by side, padded to spans. */
static void line_up(const Sight *sight, const bf16 *queries, long row_step)
{
    bf16 *to = sight->desk->queries;
    for (long i = 0; i < sight->stretch->count; i++)
        for (long head = 0; head < sight->heads; head++) {
            const bf16 *query = queries + sight->stretch->rows[i] * row_step + head * sight->size;
            for (long at = 0; at < sight->spans * SPAN; at += SPAN, to += SPAN) {
                long width = sight->size - at;
                __mmask32 mask = first_halves(width);
                _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, query + at));
            }
        }
}

/* Scores of sixteen positions, for queries of rows that have the same keys there. */
AMX static void score_tiles(const Sight *sight, long block, Alike alike, int whole)
{
    const Desk *desk = sight->desk;
    turn_keys(sight, alike.longest, block);
    for (long tile = alike.first_tile; tile < alike.end_tile; tile++) {
        const bf16 *queries = desk->queries + tile * TILE_ROWS * sight->spans * SPAN;
        float *to = desk->scores + tile * TILE_ROWS * sight->step + block;
        float aside[TILE_ROWS][LANES];
        _tile_zero(SUMS);
        for (long span = 0; span < sight->spans; span++) {
            _tile_loadd(LEFT, queries + span * SPAN, sight->spans * TILE_LINE);
            _tile_loadd(RIGHT, desk->turned + span * LANES, TILE_LINE);
            _tile_dpbf16ps(SUMS, LEFT, RIGHT);
        }
        if (whole) {
            _tile_stored(SUMS, to, sight->step * sizeof *to);
            continue;
        }
        _tile_stored(SUMS, aside, sizeof *aside);
        for (long i = 0; i < TILE_ROWS; i++) {
            long row = (tile * TILE_ROWS + i) / sight->heads;
            if (row >= alike.first && row < alike.end)
                _mm512_storeu_ps(to + i * sight->step, _mm512_loadu_ps(aside[i]));
        }
    }
}

/* Values of 32 positions, 32 wide, two positions side by side: the first half of the width of all,
   then the second. */
static void pair_values(const bf16 *values, const int64_t *slots, long count, long slot_step,
                        __mmask32 mask, bf16 *out)
{
    for (long at = 0; at < SPAN; at += 2, out += NUMBERS) {
        long here = slots[at < count ? at : count - 1];
        long next = slots[at + 1 < count ? at + 1 : count - 1];
        __m512i one = _mm512_maskz_loadu_epi16(mask, values + here * slot_step);
        __m512i two = _mm512_maskz_loadu_epi16(mask, values + next * slot_step);
        __m512i first, second;
        interleave(one, two, &first, &second);
        _mm512_storeu_si512(out, first);
        _mm512_storeu_si512(out + TILE_ROWS * NUMBERS, second);
    }
}

/* Adds what a tile of queries sees in 32 positions. */
AMX static inline void add_values(const bf16 *weights, long step, const bf16 *values)
{
    _tile_loadd(LEFT, weights, step * sizeof *weights);
    _tile_loadd(RIGHT, values, TILE_LINE);
    _tile_dpbf16ps(SUMS, LEFT, RIGHT);
    _tile_loadd(MORE_RIGHT, values + TILE_ROWS * NUMBERS, TILE_LINE);
    _tile_dpbf16ps(MORE_SUMS, LEFT, MORE_RIGHT);
}

/* The same where rows have different values: with those of each, and no weight for the others. */
AMX static void add_apart(const Sight *sight, long tile, long block, long part, __mmask32 mask)
{
    const Stretch *stretch = sight->stretch;
    const bf16 *weights = sight->desk->weights + tile * TILE_ROWS * sight->step + block;
    bf16 values[SPAN_VALUES], own[TILE_ROWS][SPAN];
    for (long first = 0; first < stretch->count;) {
        Alike alike = alike_from(sight, first);
        long count = stretch->lengths[alike.longest] - block;
        first = alike.end;
        if (tile < alike.first_tile || tile >= alike.end_tile || count <= 0)
            continue;
        pair_values(sight->values + part, stretch->tables[alike.longest] + block, count,
                    sight->slot_step, mask, values);
        for (long i = 0; i < TILE_ROWS; i++) {
            long row = (tile * TILE_ROWS + i) / sight->heads;
            __mmask32 mine = row >= alike.first && row < alike.end ? ~0u : 0;
            _mm512_storeu_si512(own[i], _mm512_maskz_loadu_epi16(mine, weights + i * sight->step));
        }
        add_values(own[0], SPAN, values);
    }
}

/* Weighted sums of values, 32 wide from `part` on, of all queries. */
AMX static void gather_tiles(const Sight *sight, long part, const float *totals, bf16 *out,
                             long out_step)
{
    const Stretch *stretch = sight->stretch;
    const Desk *desk = sight->desk;
    long width = sight->size - part, begin = sight->nearest / SPAN * SPAN;
    long agreed = stretch->agreed < sight->last + 1 ? stretch->agreed : sight->last + 1;
    __mmask32 mask = first_halves(width);
    long longest = rows_alike(sight, 0, stretch->count).longest;
    for (long block = begin; block < agreed; block += SPAN)
        pair_values(sight->values + part, stretch->tables[longest] + block,
                    stretch->lengths[longest] - block, sight->slot_step, mask,
                    desk->values + (block - begin) / SPAN * SPAN_VALUES);
    for (long query = 0; query < sight->queries; query += TILE_ROWS) {
        const bf16 *weights = desk->weights + query * sight->step;
        float sums[TILE_ROWS][NUMBERS];
        long block = begin;
        _tile_zero(SUMS);
        _tile_zero(MORE_SUMS);
        for (; block < agreed; block += SPAN)
            add_values(weights + block, sight->step,
                       desk->values + (block - begin) / SPAN * SPAN_VALUES);
        for (; block <= sight->last; block += SPAN)
            add_apart(sight, query / TILE_ROWS, block, part, mask);
        _tile_stored(SUMS, sums, sizeof *sums);
        _tile_stored(MORE_SUMS, sums[0] + LANES, sizeof *sums);
        for (long i = 0; i < TILE_ROWS && query + i < sight->queries; i++) {
            long row = (query + i) / sight->heads, head = (query + i) % sight->heads;
            bf16 *to = out + stretch->rows[row] * out_step + head * sight->size + part;
            __m512 total = _mm512_set1_ps(totals[query + i]);
            for (long at = 0; at < NUMBERS; at += LANES)
                store_number(to + at, first_lanes(width - at),
                           _mm512_div_ps(_mm512_loadu_ps(sums[i] + at), total));
        }
    }
}

/* Weights of all queries, 0 for what they do not see of whole tiles. */
static void soften_all(const Sight *sight, const Model *model, const Layer *layer, float *totals,
                       Ahead *ahead)
{
    long begin = sight->nearest / SPAN * SPAN, end = (sight->last / SPAN + 1) * SPAN;
    for (long query = 0; query < sight->queries; query++) {
        long position = sight->stretch->positions[query / sight->heads];
        long from = first_seen(layer, position), seen = position + 1;
        long first = from / LANES * LANES, past = (position / LANES + 1) * LANES;
        bf16 *weights = sight->desk->weights + query * sight->step;
        float *scores = sight->desk->scores + query * sight->step;
        long head = sight->first_head + query % sight->heads;
        totals[query] = soften(model, scores, sink_of(layer, head), from, seen, weights);
        memset(weights + begin, 0, (first - begin) * sizeof *weights);
        memset(weights + past, 0, (end - past) * sizeof *weights);
        fetch_ahead(ahead);
    }
}

/* What many queries see. */
AMX static void attend_in_tiles(const Sight *sight, const Model *model, const Layer *layer,
                                const bf16 *queries, long row_step, bf16 *out, long out_step,
                                Ahead *ahead)
{
    const Stretch *stretch = sight->stretch;
    Alike all = rows_alike(sight, 0, stretch->count);
    float totals[sight->queries];
    shape_attention(sight->queries);
    line_up(sight, queries, row_step);
    for (long block = sight->nearest / LANES * LANES; block <= sight->last; block += LANES) {
        if (block < stretch->agreed)
            score_tiles(sight, block, all, 1);
        else
            for (long first = 0; first < stretch->count;) {
                Alike alike = alike_from(sight, first);
                if (stretch->lengths[alike.longest] > block)
                    score_tiles(sight, block, alike, 0);
                first = alike.end;
            }
        fetch_ahead(ahead);
    }
    soften_all(sight, model, layer, totals, ahead);
    for (long part = 0; part < sight->size; part += SPAN)
        gather_tiles(sight, part, totals, out, out_step);
    _tile_release();
}

/* What the query heads of one key/value head see in some rows; see `attend_by_vectors`. */
static void attend_by_tiles(const Model *model, const Layer *layer, long kv_head,
                            const Stretch *stretch, const bf16 *queries, bf16 *out,
                            long out_step, const Desk *desk, Ahead *ahead)
{
    long size = layer->size, row_step = model->heads * size, heads = model->heads / layer->kv_heads;
    Sight sight = {.stretch = stretch, .desk = desk, .slot_step = slot_size(layer),
                   .size = size, .first_head = kv_head * heads, .heads = heads,
                   .queries = stretch->count * heads, .spans = (size + SPAN - 1) / SPAN};
    sight.keys = layer->cache + kv_head * 2 * size;
    sight.values = sight.keys + size;
    extent(layer, stretch, &sight.nearest, &sight.last);
    sight.step = tile_step(sight.last);
    queries += kv_head * heads * size;
    out += kv_head * heads * size;
    if (kv_head == 0)
        fetch(layer, stretch, 0);
    if (sight.queries <= FEW_QUERIES)
        attend_to_few(&sight, model, layer, queries, row_step, out, out_step, ahead);
    else
        attend_in_tiles(&sight, model, layer, queries, row_step, out, out_step, ahead);
}

#endif
