/* Heads that guess at later tokens from one state: see `decoder.h`. */

#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "vector.h"

/* x + silu(y). */
static void stepped(const Number *x, const float *y, long size, Number *out)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        Floats inner = load(mask, y + at);
        Floats silu = inner / (every(1.0f) + exp_of(every(0.0f) - inner));
        store_number(out + at, mask, load_number(x + at, mask) + silu);
    }
}

/* A row that the first block reads: a state, and the vector of the token chosen from it. */
static void seen(const Heads *heads, const Number *state, int64_t token, Number *out)
{
    long size = heads->size;
    memcpy(out, state, size * sizeof *out);
    if (!heads->vectors)
        return;
    const Number *vector = heads->vectors + token * size;
    Floats factor = every(heads->factors[token]);
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        store_number(out + size + at, mask, load_number(vector + at, mask) * factor);
    }
}

/* What heads compute on their way. */
typedef struct {
    Number *seen; /* [rows, first's inputs] */
    Number *x;    /* [heads, rows, inputs]: of the blocks after the first, and of the output */
    float *y;   /* [rows, heads * size], then [heads, rows, size] */
} Inside;

/* Makes room for it, with 0 where rows are padded. */
static int lay_inside(const Heads *heads, long rows, long inputs, Inside *inside)
{
    long blocks = heads->count * rows;
    size_t seen_bytes = rows * heads->first->in * sizeof(Number);
    size_t x_bytes = blocks * inputs * sizeof(Number);
    size_t y_bytes = blocks * heads->size * sizeof(float);
    char *room = calloc(1, seen_bytes + x_bytes + y_bytes);
    if (!room)
        return OUT_OF_MEMORY;
    inside->y = (float *)room;
    inside->x = (Number *)(room + y_bytes);
    inside->seen = (Number *)(room + y_bytes + x_bytes);
    return 0;
}

int decoder_guess(Decoder *decoder, const Heads *heads, long rows, const Number *states,
                  const int64_t *chosen, float *logits)
{
    long size = heads->size, count = heads->count, inputs = heads->output->in;
    for (long row = 0; row < rows; row++)
        if (heads->vectors && (chosen[row] < 0 || chosen[row] >= heads->tokens))
            return OUT_OF_RANGE;
    Inside inside;
    if (lay_inside(heads, rows, inputs, &inside))
        return OUT_OF_MEMORY;
    for (long row = 0; row < rows; row++)
        seen(heads, states + row * size, chosen[row], inside.seen + row * heads->first->in);
    int status = decoder_multiply(decoder, heads->first, 1, rows, inside.seen, inside.y);
    for (long head = 0; head < count; head++)
        for (long row = 0; row < rows; row++)
            stepped(states + row * size, inside.y + (row * count + head) * size, size,
                    inside.x + (head * rows + row) * inputs);
    for (long block = 0; block < heads->later && !status; block++) {
        const Product *products = heads->blocks + block * count;
        status = decoder_multiply(decoder, products, count, rows, inside.x, inside.y);
        for (long at = 0; at < count * rows; at++)
            stepped(inside.x + at * inputs, inside.y + at * size, size, inside.x + at * inputs);
    }
    long outputs = heads->shared ? 1 : count;
    if (!status)
        status = decoder_multiply(decoder, heads->output, outputs, count * rows / outputs, inside.x,
                                  logits);
    free(inside.y);
    return status;
}
