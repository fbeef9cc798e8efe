/* The gate of a feed-forward part. */

#ifndef PACELINE_GATE_H
#define PACELINE_GATE_H

#include "decoder.h"
#include "vector.h"

/* Curves; `common/model/llama.py` has the same numbers. */
enum { SILU, GELU, CLAMPED };

/* What 1 / (1 + exp(-x)) is taken of by which GELU multiplies, where it is approximated by tanh. */
INLINE Floats bent(Floats gate)
{
    Floats cube = gate * gate * gate;
    return every(1.59576912160573f) * fmadd(every(0.044715f), cube, gate);
}

INLINE void gated_by(int curve, const Gate *by, const float *both, long size, Number *out)
{
    Floats limit = every(by->limit), least = every(-by->limit);
    for (long at = 0; at < size; at += LANES) {
        Lanes mask = first_lanes(size - at);
        Floats gate = load(mask, both + at), up = load(mask, both + size + at);
        if (curve == CLAMPED) { /* what is no number stays none */
            gate = smaller_of(limit, gate);
            up = smaller_of(limit, larger_of(least, up)) + every(1.0f);
        }
        Floats read = curve == GELU ? bent(gate) : gate;
        if (curve == CLAMPED)
            read = read * every(by->steepness);
        Floats curved = gate / (every(1.0f) + exp_of(every(0.0f) - read));
        store_number(out + at, mask, curved * up);
    }
}

/* What one row's gates leave of the other half. */
static void gated(const Gate *by, const float *both, long size, Number *out)
{
    if (by->curve == GELU)
        gated_by(GELU, by, both, size, out);
    else if (by->curve == CLAMPED)
        gated_by(CLAMPED, by, both, size, out);
    else
        gated_by(SILU, by, both, size, out);
}

#endif
