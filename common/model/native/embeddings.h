/* What rows have of their tokens: where they begin, and what layers add to them. */

#ifndef PACELINE_EMBEDDINGS_H
#define PACELINE_EMBEDDINGS_H

#include <string.h>

#include "norms.h"
#include "pass.h"
#include "vector.h"
#include "workers.h"

/* The id whose embeddings a row has. */
static int64_t read_as(const Pass *pass, long row)
{
    int64_t id = pass->batch->ids[row];
    return pass->model->read_as ? pass->model->read_as[id] : id;
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
            const Number *from = model->embeddings + read_as(pass, i) * hidden + at;
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

/* Norms what rows made for each layer, and adds the embeddings of their tokens. */
static void add_per_layer(void *what, Part part)
{
    Pass *pass = what;
    const Model *model = pass->model;
    long size = model->per_layer_size, step = model->layers * size;
    Floats scale = every(model->per_layer_scale);
    PART_OF(pass->rows)
        for (long layer = 0; layer < model->layers; layer++) {
            const Number *from = model->per_layer_embeddings + read_as(pass, i) * step;
            float *to = pass->per_layer + i * step + layer * size;
            Floats inverse = every(inverse_rms(to, size, model->per_layer_epsilon));
            for (long at = 0; at < size; at += LANES) {
                Lanes mask = first_lanes(size - at);
                Floats norm = normed_lanes(mask, to + at, inverse, model->per_layer_norm + at);
                Floats token = load_number(from + layer * size + at, mask);
                store(to + at, mask, fmadd(token, scale, norm));
            }
        }
}

#endif
