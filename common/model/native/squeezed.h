/* bfloat16 weights in 12 bits, none of them rounded.

   Reading weights is what takes time, and exponents of a matrix are much alike: nearly all have the
   same upper half. So of a weight there are its sign and fraction, and the lower half of its
   exponent. The few with another upper half, the strays, are listed by slab, and set afterwards.

   A slab is the weights of a block for 16 groups of inputs; the inputs end with a whole one. Its
   first part has a cache line for each group: signs and fractions of the vectors 0 and 1 of the
   group's weights. The second has their exponents, and the third signs and fractions of the vectors
   2 and 3. A word of the first and third has a sign and a fraction where a weight of the even
   vector has them, and with bytes swapped where one of the odd vector has them. A word of the
   second has four halves of exponents: of vector 0 in its place, of 1 four bits higher, of 2 four
   bits lower, and of 3 in its place with bytes swapped. */

#ifndef PACELINE_SQUEEZED_H
#define PACELINE_SQUEEZED_H

#include "rows.h"

#define SLAB_GROUPS 16
#define SLAB_INPUTS (2 * SLAB_GROUPS)
#define SLAB_BYTES (SLAB_GROUPS * GROUP_LINE)
#define SLAB_PART (SLAB_GROUPS * CACHE_LINE)
#define SQUEEZED_BYTES (3 * SLAB_PART) /* of a slab */
#define SLABS_AHEAD 4 /* by which weights are fetched before they are needed */

#define SIGN_AND_FRACTION 0x807f
#define LOWER_EXPONENT 0x0780
#define AND_OR 0xea /* a & b | c, as a ternary operation */

/* Slabs of a block. */
INLINE long slabs_of(const Product *product)
{
    return (product->in + SLAB_INPUTS - 1) / SLAB_INPUTS;
}

INLINE const char *squeezed_slab(const Product *product, long block, long slab)
{
    return (const char *)product->packed + (block * slabs_of(product) + slab) * SQUEEZED_BYTES;
}

INLINE __m512i swapped_bytes(__m512i words)
{
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_set_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1));
    return _mm512_shuffle_epi8(words, order);
}

/* A vector of weights from what has parts of it in place, and other bits besides. */
INLINE __m512i joined_parts(__m512i rest, __m512i lower, __m512i upper)
{
    const __m512i rest_mask = _mm512_set1_epi16((short)SIGN_AND_FRACTION);
    const __m512i lower_mask = _mm512_set1_epi16(LOWER_EXPONENT);
    __m512i exponent = _mm512_ternarylogic_epi32(lower, lower_mask, upper, AND_OR);
    return _mm512_ternarylogic_epi32(rest, rest_mask, exponent, AND_OR);
}

/* Unpacks some groups of a slab; the first two vectors of each, the others, or both. */
INLINE void unpack(const char *slab, int group, int count, int first, int others, __m512i upper,
                   char *to)
{
#pragma GCC unroll 8
    for (; count > 0; count--, group++) {
        const __m512i *from = (const __m512i *)(slab + group * CACHE_LINE);
        __m512i *out = (__m512i *)(to + group * GROUP_LINE);
        __m512i lower = from[SLAB_GROUPS];
        if (first) {
            __m512i rest = from[0];
            out[0] = joined_parts(rest, lower, upper);
            out[1] = joined_parts(swapped_bytes(rest), _mm512_srli_epi16(lower, 4), upper);
        }
        if (others) {
            __m512i rest = from[2 * SLAB_GROUPS];
            out[2] = joined_parts(rest, _mm512_slli_epi16(lower, 4), upper);
            out[3] = joined_parts(swapped_bytes(rest), swapped_bytes(lower), upper);
        }
    }
}

/* The upper half of exponents, in its place. */
INLINE __m512i upper_of(const Product *product)
{
    return _mm512_set1_epi16((short)(product->exponent << 7));
}

/* Sets the strays of a slab that is unpacked. */
INLINE void set_strays(const Product *product, long block, long slab, char *unpacked)
{
    const int32_t *starts = product->stray_starts + block * slabs_of(product) + slab;
    for (long at = starts[0]; at < starts[1]; at++)
        ((bf16 *)unpacked)[product->strays[at] >> 16] = (bf16)product->strays[at];
}

INLINE void fetch_lines(const char *from, int lines)
{
    for (int line = 0; line < lines; line++)
        _mm_prefetch(from + line * CACHE_LINE, _MM_HINT_T0);
}

static void unpack_block(const Product *product, long block, char *to)
{
    for (long slab = 0; slab < slabs_of(product); slab++, to += SLAB_BYTES) {
        const char *from = squeezed_slab(product, block, slab);
        fetch_lines(from + SLABS_AHEAD * SQUEEZED_BYTES, SQUEEZED_BYTES / CACHE_LINE);
        unpack(from, 0, SLAB_GROUPS, 1, 1, upper_of(product), to);
        set_strays(product, block, slab, to);
    }
}

#endif
