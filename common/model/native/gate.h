/* The gate of a feed-forward part. */

#ifndef PACELINE_GATE_H
#define PACELINE_GATE_H

#include "vector.h"

/* What 1 / (1 + exp(-x)) is taken of by which GELU multiplies, where it is approximated by tanh. */
INLINE Floats bent(Floats gate)
{
    Floats cube = gate * gate * gate;
    return every(1.59576912160573f) * fmadd(every(0.044715f), cube, gate);
}

INLINE void gated_by(int gelu, const float *both, long size, Number *out)
{
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        Floats gate = load(mask, both + at);
        Floats curve = gate / (every(1.0f) + exp_of(every(0.0f) - (gelu ? bent(gate) : gate)));
        store_number(out + at, mask, curve * load(mask, both + size + at));
    }
}

/* silu(gate) * up of one row, or gelu(gate) * up. */
static void gated(int gelu, const float *both, long size, Number *out)
{
    if (gelu)
        gated_by(1, both, size, out);
    else
        gated_by(0, both, size, out);
}

#endif
