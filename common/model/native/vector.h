/* What AVX-512 lacks: bfloat16 in and out, and exp().

   Every function rounds one way whatever stands in the other lanes, and nothing here is left to
   the compiler's choice of contraction (-ffp-contract=off): the bits are those of this source. */

#ifndef PACELINE_VECTOR_H
#define PACELINE_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define CACHE_LINE 64
#define AHEAD 16384 /* bytes by which weights are fetched before they are needed */

#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;

/* Lanes below a count. */
INLINE __mmask16 first_lanes(long count)
{
    return count >= LANES ? 0xffff : (__mmask16)((1u << (count > 0 ? count : 0)) - 1);
}

/* Numbers below a count, of a vector of bfloat16. */
INLINE __mmask32 first_halves(long count)
{
    return count >= 2 * LANES ? ~0u : (1u << count) - 1;
}

INLINE __m512 widened(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

INLINE __m512 load_bf16(const bf16 *from, __mmask16 mask)
{
    return widened(_mm256_maskz_loadu_epi16(mask, from));
}

INLINE void store_bf16(bf16 *to, __mmask16 mask, __m512 x)
{
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

/* acc + a . b, lane by lane over pairs of bfloat16. */
INLINE __m512 dot_pairs(__m512 acc, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* 2^x to about one unit in the last place, for x of 0 or less; 0 far below, so that masked lanes
   vanish. */
INLINE __m512 exp2_of(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.32647e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.67151e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550734e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022242e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314698e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* exp(x) to about one unit in the last place; 0 far below, so that masked lanes vanish. */
INLINE __m512 exp_of(__m512 x)
{
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-104.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

#endif
