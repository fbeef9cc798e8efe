/* What sampling makes of a row of logits before noise, as `common/model/warpers.py` says. */

#ifndef PACELINE_WARP_H
#define PACELINE_WARP_H

#include <stdint.h>

/* What changes a row's logits before all else: biases, and then a repetition penalty. */
typedef struct {
    const int64_t *ids;  /* [count]: whose logits have something added */
    const float *biases; /* [count]: what */
    int64_t count;
    const uint8_t *seen; /* [vocab]: whether an id occurs before the path; NULL where nothing is
                            penalised */
    int64_t vocab;
    int64_t *path; /* [steps]: ids after those; there is room for what a roll adds */
    int64_t steps;
    float penalty;
} Adjusting;

/* How one token is drawn. */
typedef struct {
    uint64_t seed;
    int64_t position, top_k;
    double temperature, top_p, min_p;
    Adjusting *adjusting; /* or NULL */
} Drawing;

/* A row, warped as far as each token's logit tells whether it survives. */
typedef struct {
    const Drawing *how;
    const float *x; /* [size]: scaled logits */
    long size;
    float least;          /* none below survives */
    const float *weights; /* [size]: chances over that of the likeliest of those that top-k leaves;
                             NULL where there is no top-p */
    double total;         /* of these */
} Warped;

/* How many numbers are no less than one. */
long count_from(const float *x, long size, float least);

/* A row's logits, adjusted. x: [size], where they are written. */
const float *adjusted(const Adjusting *how, const float *logits, long size, float *x);

/* Warps a row, at a temperature above 0. x, weights: [size], for what a `Warped` points to; the
   logits, adjusted, may stand in the former. */
Warped warp(const float *logits, long size, const Drawing *how, float *x, float *weights);

/* How far a token is behind the last that top-p leaves; whether that is sure. */
int behind_nucleus(const Warped *row, long id, double *over);

/* The scaled logits of tokens that survive, -INFINITY of others.

   logits, x: [rows, size]; sure: [rows], whether what was summed cannot be otherwise elsewhere; room:
   [3 * size]; ids: [size]. */
void decoder_survivors(const float *logits, long rows, long size, const Drawing *drawings, float *x,
                       uint8_t *sure, float *room, int64_t *ids);

#endif
