/* Lanes of one float32 number, where those of other decoders hold two of bfloat16.

   Names are theirs: what is a pair or a half there is a whole lane here. */

#ifndef PACELINE_WIDE_H
#define PACELINE_WIDE_H

#define SIDES 1

typedef Lanes Halves;
typedef Floats Pairs;

#define ALL_HALVES ALL_LANES

INLINE Ints load_halves(Halves mask, const float *from)
{
    return as_ints(load(mask, from));
}

INLINE Floats load_number(const float *from, Lanes mask)
{
    return load(mask, from);
}

INLINE void store_number(float *to, Lanes mask, Floats x)
{
    store(to, mask, x);
}

INLINE Pairs pairs_of(Ints x)
{
    return as_floats(x);
}

/* Numbers by which whole vectors are multiplied, one after another. */
typedef float Factor;

INLINE void store_factors(Factor *to, Lanes mask, Floats x)
{
    store(to, mask, x);
}

/* The factor at an address, in every lane. */
INLINE Pairs every_factor(const Factor *from)
{
    return every(*from);
}

/* acc + a b. */
INLINE Floats dot_pairs(Floats acc, Pairs a, Pairs b)
{
    return fmadd(a, b, acc);
}

/* There are no narrow weights here: a caller has them multiplied through torch. */
INLINE Ints weights_side(int narrow, int side, Ints x)
{
    return x;
}

INLINE Ints add_side(int narrow, Ints acc, Ints weights, Ints inputs)
{
    __asm__("vfmadd231ps %1, %2, %0" : "+v"(acc) : "v"(weights), "v"(inputs));
    return acc;
}

#endif
