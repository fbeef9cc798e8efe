/* Vectors of AVX2 with FMA, eight lanes wide: of processors that lack AVX-512 or its bfloat16.

   There are no products of pairs, so bfloat16 is widened. A row's bits do not depend on other rows
   here either, and are not those of other widths. */

#ifndef PACELINE_AVX2_H
#define PACELINE_AVX2_H

#define LANES 8
#define REGISTERS 16
#define SUMS_AT_ONCE 12 /* vectors of them, for which a product has registers */
#define SUMS_A_ROW 2    /* at the least: fewer would have inputs fetched more often */
/* Rows up to which memory is asked once for a line: any number. */
#define ASKED_ONCE (SUMS_AT_ONCE / SUMS_A_ROW)
#define SLICE 2         /* vectors of a group's weights that lie side by side: a line */
#define MEMORY_ROWS 6   /* that take as long to compute as memory takes to bring all weights once */
#define HEADS_TOGETHER 5  /* whose scores, and values, are summed together */
#define BLOCKS_TOGETHER 2 /* of keys, that queries are multiplied with at once */
#define FETCHED_BEFORE 0  /* positions fetched ahead of scores: all of a row's at once, by loads */

typedef __m256 Floats;
typedef __m256i Ints;
typedef uint8_t Lanes;

#define ALL_LANES 0xff

INLINE int processor_fits(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

INLINE Floats every(float x)
{
    return _mm256_set1_ps(x);
}

INLINE Ints every_int(int32_t x)
{
    return _mm256_set1_epi32(x);
}

INLINE Floats as_floats(Ints x)
{
    return _mm256_castsi256_ps(x);
}

INLINE Ints as_ints(Floats x)
{
    return _mm256_castps_si256(x);
}

/* All bits of some lanes. */
INLINE Ints bits_of(Lanes mask)
{
    const Ints bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(every_int(mask), bits), bits);
}

/* 0 in all other lanes. */
INLINE Floats only(Lanes mask, Floats x)
{
    return mask == ALL_LANES ? x : _mm256_and_ps(x, as_floats(bits_of(mask)));
}

INLINE Floats load_all(const float *from)
{
    return _mm256_loadu_ps(from);
}

/* Of lanes that are not asked for: 0. */
INLINE Floats load(Lanes mask, const float *from)
{
    return mask == ALL_LANES ? load_all(from) : _mm256_maskload_ps(from, bits_of(mask));
}

INLINE Ints load_ints(Lanes mask, const int32_t *from)
{
    return _mm256_maskload_epi32(from, bits_of(mask));
}

INLINE void store_all(float *to, Floats x)
{
    _mm256_storeu_ps(to, x);
}

INLINE void store(float *to, Lanes mask, Floats x)
{
    if (mask == ALL_LANES)
        store_all(to, x);
    else
        _mm256_maskstore_ps(to, bits_of(mask), x);
}

/* Stores whole parts, of 0 to 255. */
INLINE void store_bytes(uint8_t *to, Floats x)
{
    Ints words = _mm256_cvttps_epi32(x);
    words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    __m128i bytes = _mm256_castsi256_si128(words);
    _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(bytes, bytes));
}

/* a b + c, rounded once. */
INLINE Floats fmadd(Floats a, Floats b, Floats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* c - a b, rounded once. */
INLINE Floats fnmadd(Floats a, Floats b, Floats c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* The second where one is NaN, as the next. */
INLINE Floats larger_of(Floats a, Floats b)
{
    return _mm256_max_ps(a, b);
}

INLINE Floats smaller_of(Floats a, Floats b)
{
    return _mm256_min_ps(a, b);
}

/* What is larger in some lanes; in others the second. */
INLINE Floats larger_where(Lanes mask, Floats a, Floats b)
{
    Floats larger = larger_of(a, b);
    return mask == ALL_LANES ? larger : _mm256_blendv_ps(b, larger, as_floats(bits_of(mask)));
}

INLINE Lanes equal_where(Lanes mask, Floats a, Floats b)
{
    return mask & _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

INLINE Floats without_sign(Floats x)
{
    return _mm256_andnot_ps(every(-0.0f), x);
}

INLINE Floats nearest_whole(Floats x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x 2^n of whole n up to 127; below -126 that of -126. */
INLINE Floats times_power(Floats x, Floats n)
{
    Ints whole = _mm256_cvtps_epi32(larger_of(n, every(-126.0f)));
    return x * as_floats(_mm256_slli_epi32(_mm256_add_epi32(whole, every_int(127)), 23));
}

INLINE float sum_of(Floats x)
{
    __m128 four = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    four += _mm_movehl_ps(four, four);
    return four[0] + four[1];
}

INLINE float largest_of(Floats x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return four[0] > four[1] ? four[0] : four[1];
}

/* sums - factor * numbers, as floats. */
INLINE Floats reduced(Ints sums, int factor, Ints numbers)
{
    numbers = _mm256_mullo_epi32(numbers, every_int(factor));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, numbers));
}

INLINE Ints shifted_right(Ints x, int bits)
{
    return _mm256_srli_epi32(x, bits);
}

INLINE Ints added(Ints a, Ints b)
{
    return _mm256_add_epi32(a, b);
}

INLINE Floats floats_of(Ints x)
{
    return _mm256_cvtepi32_ps(x);
}

INLINE Lanes at_least_where(Lanes mask, Floats a, Floats b)
{
    return mask & _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

/* The upper halves of products without sign, and the lower ones. */
INLINE Ints multiplied(Ints a, Ints b, Ints *low)
{
    Ints even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* Of every four lanes the numbers of four vectors side by side: those of the first of the lanes in
   the first vector, and so on. */
INLINE void four_by_four(const Ints in[4], Ints out[4])
{
    Ints a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpacklo_epi32(in[2], in[3]);
    Ints c = _mm256_unpackhi_epi32(in[0], in[1]), d = _mm256_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

INLINE void store_ints(void *to, Ints x)
{
    _mm256_storeu_si256((Ints *)to, x);
}

/* Rows and columns of 32-bit numbers, exchanged. */
INLINE void transpose(Ints a[LANES], Ints out[LANES])
{
    Ints b[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 q + j]: of rows 4 q to 4 q + 3, columns j and j + 4. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        out[j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x20);
        out[4 + j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x31);
    }
}

#ifndef WIDE

#define SIDES 2 /* in which pairs, and groups of four bytes, are multiplied: what is even, and odd */

typedef uint16_t Halves;
typedef struct {
    Floats even, odd;
} Pairs;

#define ALL_HALVES 0xffff

static __attribute__((noinline)) void copy_some(bf16 *to, Halves mask, const bf16 *from)
{
    for (; mask; mask >>= 1, to++, from++)
        if (mask & 1)
            *to = *from;
}

INLINE Ints load_halves(Halves mask, const bf16 *from)
{
    bf16 some[2 * LANES] = {0};
    if (mask != ALL_HALVES)
        copy_some(some, mask, from);
    return _mm256_loadu_si256((const Ints *)(mask == ALL_HALVES ? from : some));
}

INLINE Floats load_number(const bf16 *from, Lanes mask)
{
    bf16 some[LANES] = {0};
    if (mask != ALL_LANES)
        copy_some(some, mask, from);
    __m128i numbers = _mm_loadu_si128((const __m128i *)(mask == ALL_LANES ? from : some));
    return as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(numbers), 16));
}

/* bfloat16 in the lower half of each lane: the nearest, of two the even. */
INLINE Ints rounded_halves(Floats x)
{
    Ints bits = as_ints(x), upper = _mm256_srli_epi32(bits, 16);
    Ints last = _mm256_and_si256(upper, every_int(1));
    Ints rounded = _mm256_add_epi32(_mm256_add_epi32(bits, every_int(0x7fff)), last);
    Ints quiet = _mm256_or_si256(upper, every_int(0x40));
    Ints nan = as_ints(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
}

INLINE void store_number(bf16 *to, Lanes mask, Floats x)
{
    Ints rounded = rounded_halves(x);
    Ints packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    bf16 some[LANES];
    _mm_storeu_si128((__m128i *)(mask == ALL_LANES ? to : some), _mm256_castsi256_si128(packed));
    if (mask != ALL_LANES)
        copy_some(to, mask, some);
}

INLINE Ints upper_halves(Ints x)
{
    return _mm256_and_si256(x, every_int((int)0xffff0000));
}

INLINE Pairs pairs_of(Ints x)
{
    return (Pairs){as_floats(_mm256_slli_epi32(x, 16)), as_floats(upper_halves(x))};
}

/* Numbers by which whole vectors are multiplied, one after another: as wide as these. */
typedef float Factor;

INLINE void store_factors(Factor *to, Lanes mask, Floats x)
{
    store(to, mask, x);
}

/* The pair of factors at an address, in every lane. */
INLINE Pairs every_factor(const Factor *from)
{
    return (Pairs){every(from[0]), every(from[1])};
}

/* acc + a . b, lane by lane over pairs of bfloat16. */
INLINE Floats dot_pairs(Floats acc, Pairs a, Pairs b)
{
    return fmadd(a.odd, b.odd, fmadd(a.even, b.even, acc));
}

/* One side of weights: float32, or whole numbers of 16 bits. Made once for all rows: left to itself
   the compiler makes it for some of them again. */
INLINE Ints weights_side(int narrow, int side, Ints x)
{
    Ints sided;
    if (narrow)
        sided = _mm256_srai_epi16(side ? x : _mm256_slli_epi16(x, 8), 8);
    else
        sided = side ? upper_halves(x) : _mm256_slli_epi32(x, 16);
    __asm__("" : "+x"(sided));
    return sided;
}

/* Adds products of what is even, or odd. Sums are not left to the compiler, which else copies them
   around until registers run out. */
INLINE Ints add_side(int narrow, Ints acc, Ints weights, Ints inputs)
{
    if (narrow)
        __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(_mm256_madd_epi16(weights, inputs)));
    else
        __asm__("vfmadd231ps %1, %2, %0" : "+x"(acc) : "x"(weights), "x"(inputs));
    return acc;
}

/* Two vectors number by number: what begins with their first halves, and with their second. */
INLINE void interleave(Ints one, Ints two, Ints *first, Ints *second)
{
    Ints low = _mm256_unpacklo_epi16(one, two), high = _mm256_unpackhi_epi16(one, two);
    *first = _mm256_permute2x128_si256(low, high, 0x20);
    *second = _mm256_permute2x128_si256(low, high, 0x31);
}

#endif

#endif
