/* Vectors of AVX-512 with bfloat16 and VNNI, sixteen lanes wide. */

#ifndef PACELINE_AVX512_H
#define PACELINE_AVX512_H

#define LANES 16
#define REGISTERS 32
#define SUMS_AT_ONCE 28 /* vectors of them, for which a product has registers */
#define SUMS_A_ROW 4    /* at the least: fewer would have inputs fetched more often */
#define ASKED_ONCE 2    /* rows up to which memory takes the time, and is asked once for a line */
#define SLICE 4         /* vectors of a group's weights that lie side by side: all of a block */
#define MEMORY_ROWS 16  /* that take as long to compute as memory takes to bring all weights once */
#define HEADS_TOGETHER 8  /* whose scores, and values, are summed together */
#define BLOCKS_TOGETHER 1 /* of keys, that queries are multiplied with at once */
#define FETCHED_BEFORE 128 /* positions by which keys and values are fetched ahead of scores */

typedef __m512 Floats;
typedef __m512i Ints;
typedef __mmask16 Lanes;

#define ALL_LANES 0xffff

INLINE int processor_fits(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

INLINE Floats every(float x)
{
    return _mm512_set1_ps(x);
}

/* Of lanes that are not asked for: 0. */
INLINE Floats load(Lanes mask, const float *from)
{
    return _mm512_maskz_loadu_ps(mask, from);
}

INLINE Floats load_all(const float *from)
{
    return _mm512_loadu_ps(from);
}

INLINE Ints load_ints(Lanes mask, const int32_t *from)
{
    return _mm512_maskz_loadu_epi32(mask, from);
}

INLINE void store(float *to, Lanes mask, Floats x)
{
    _mm512_mask_storeu_ps(to, mask, x);
}

INLINE void store_all(float *to, Floats x)
{
    _mm512_storeu_ps(to, x);
}

/* Stores whole parts, of 0 to 255. */
INLINE void store_bytes(uint8_t *to, Floats x)
{
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x)));
}

INLINE Floats as_floats(Ints x)
{
    return _mm512_castsi512_ps(x);
}

INLINE Ints as_ints(Floats x)
{
    return _mm512_castps_si512(x);
}

/* a b + c, rounded once. */
INLINE Floats fmadd(Floats a, Floats b, Floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a b, rounded once. */
INLINE Floats fnmadd(Floats a, Floats b, Floats c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The second where one is NaN, as the next. */
INLINE Floats larger_of(Floats a, Floats b)
{
    return _mm512_max_ps(a, b);
}

INLINE Floats smaller_of(Floats a, Floats b)
{
    return _mm512_min_ps(a, b);
}

/* What is larger in some lanes; in others the second. */
INLINE Floats larger_where(Lanes mask, Floats a, Floats b)
{
    return _mm512_mask_max_ps(b, mask, a, b);
}

INLINE Lanes equal_where(Lanes mask, Floats a, Floats b)
{
    return _mm512_mask_cmp_ps_mask(mask, a, b, _CMP_EQ_OQ);
}

/* 0 in all other lanes. */
INLINE Floats only(Lanes mask, Floats x)
{
    return _mm512_maskz_mov_ps(mask, x);
}

INLINE Floats without_sign(Floats x)
{
    return _mm512_abs_ps(x);
}

INLINE Floats nearest_whole(Floats x)
{
    return _mm512_roundscale_ps(x, 0);
}

/* x 2^n of whole n. */
INLINE Floats times_power(Floats x, Floats n)
{
    return _mm512_scalef_ps(x, n);
}

INLINE float sum_of(Floats x)
{
    return _mm512_reduce_add_ps(x);
}

INLINE float largest_of(Floats x)
{
    return _mm512_reduce_max_ps(x);
}

/* sums - factor * numbers, as floats. */
INLINE Floats reduced(Ints sums, int factor, Ints numbers)
{
    numbers = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(factor));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, numbers));
}

INLINE Ints every_int(int32_t x)
{
    return _mm512_set1_epi32(x);
}

INLINE Ints shifted_right(Ints x, int bits)
{
    return _mm512_srli_epi32(x, bits);
}

INLINE Ints added(Ints a, Ints b)
{
    return _mm512_add_epi32(a, b);
}

INLINE Floats floats_of(Ints x)
{
    return _mm512_cvtepi32_ps(x);
}

INLINE Lanes at_least_where(Lanes mask, Floats a, Floats b)
{
    return _mm512_mask_cmp_ps_mask(mask, a, b, _CMP_GE_OQ);
}

/* The upper halves of products without sign, and the lower ones. */
INLINE Ints multiplied(Ints a, Ints b, Ints *low)
{
    Ints even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

/* Of every four lanes the numbers of four vectors side by side: those of the first of the lanes in
   the first vector, and so on. */
INLINE void four_by_four(const Ints in[4], Ints out[4])
{
    Ints a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpacklo_epi32(in[2], in[3]);
    Ints c = _mm512_unpackhi_epi32(in[0], in[1]), d = _mm512_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

INLINE void store_ints(void *to, Ints x)
{
    _mm512_storeu_si512(to, x);
}

/* Rows and columns of 32-bit numbers, exchanged. */
INLINE void transpose(Ints a[LANES], Ints out[LANES])
{
    Ints b[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    /* a[4 q + j]: of rows 4 q to 4 q + 3, columns j, j + 4, j + 8 and j + 12. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        b[j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
        b[4 + j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
        b[8 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        b[12 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        out[j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0x88);
        out[8 + j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0xdd);
        out[4 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0x88);
        out[12 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0xdd);
    }
}

#ifndef WIDE

#define SIDES 1 /* in which pairs, and groups of four bytes, are multiplied: at once */

typedef __mmask32 Halves;
typedef __m512i Pairs;

#define ALL_HALVES (~0u)

INLINE Floats load_number(const bf16 *from, Lanes mask)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE void store_number(bf16 *to, Lanes mask, Floats x)
{
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

INLINE Ints load_halves(Halves mask, const bf16 *from)
{
    return _mm512_maskz_loadu_epi16(mask, from);
}

INLINE Pairs pairs_of(Ints x)
{
    return x;
}

/* Numbers by which whole vectors are multiplied, one after another. */
typedef bf16 Factor;

INLINE void store_factors(Factor *to, Lanes mask, Floats x)
{
    store_number(to, mask, x);
}

/* The pair of factors at an address, in every lane. */
INLINE Pairs every_factor(const Factor *from)
{
    return _mm512_set1_epi32(*(const int32_t *)from);
}

/* acc + a . b, lane by lane over pairs of bfloat16. */
INLINE Floats dot_pairs(Floats acc, Pairs a, Pairs b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* One side of weights: all of them. */
INLINE Ints weights_side(int narrow, int side, Ints x)
{
    return x;
}

/* Adds products of pairs of bfloat16, or of four bytes each. Sums are not left to the compiler,
   which else runs out of registers, or not, as other code of the same function changes. */
INLINE Ints add_side(int narrow, Ints acc, Ints weights, Ints inputs)
{
    if (narrow)
        __asm__("vpdpbusd %1, %2, %0" : "+v"(acc) : "v"(weights), "v"(inputs));
    else
        __asm__("vdpbf16ps %1, %2, %0" : "+v"(acc) : "v"(weights), "v"(inputs));
    return acc;
}

/* Two vectors number by number: what begins with their first halves, and with their second. */
INLINE void interleave(Ints one, Ints two, Ints *first, Ints *second)
{
    static const uint16_t FIRST[2 * LANES] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                              37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                              11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    Ints low = _mm512_loadu_si512(FIRST), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    *first = _mm512_permutex2var_epi16(one, low, two);
    *second = _mm512_permutex2var_epi16(one, high, two);
}

#endif

#endif
