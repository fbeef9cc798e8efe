/* Products by the processor's tile registers (AMX).

   Up to sixteen rows take as long as one: reading the weights is what takes time. Every output is
   one sum in an order of its own, whichever rows are computed beside it: of bfloat16 the even and
   the odd inputs of each 32 by themselves, and then both added to the sum. So bits differ from
   those of `by_vectors.h`; with int8 weights sums are exact, and the same. */

#ifndef PACELINE_BY_TILES_H
#define PACELINE_BY_TILES_H

#include <cpuid.h>
#include <pmmintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rows.h"
#include "squeezed.h"

#define AMX __attribute__((target("amx-tile,amx-bf16,amx-int8")))

_Static_assert(SLICE == VECTORS, "tiles, and squeezed weights, have whole blocks side by side");

#define TILE_GROUPS 16 /* four bytes of a row each */
#define TILE_LINE 64   /* bytes of a row of a tile */
#define TILE_BYTES (TILE_ROWS * TILE_LINE)
#define MEANWHILE 2048 /* bytes of weights to fetch while sums are stored */
#define TILES_AHEAD 6144 /* bytes by which they are fetched before they are multiplied: farther ones
                            are gone from a first cache that another program shares */
#define FEW_ROWS 3     /* that are faster by vectors, though with the same sums */

#define TILE_FEATURES (1u << 22 | 1u << 24 | 1u << 25) /* bfloat16, tiles, int8: leaf 7 */
#define ASK_PERMISSION 0x1023 /* of arch_prctl */
#define TILE_DATA 18          /* what is asked for */

/* What a program says of the eight tiles before it uses them. */
typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} TileShapes;

/* Which tile has what; sums are in those before. */
#define INPUTS 4
#define WEIGHTS 5
#define LAST_INPUTS 6
#define LAST_WEIGHTS 7

/* Whether this processor has tiles, and the kernel lets this process use them. By CPUID: up to
   version 18 clang knows no names of these features. */
static int tiles_work(void)
{
    unsigned eax, ebx, ecx, edx = 0;
    __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
    return (edx & TILE_FEATURES) == TILE_FEATURES &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

/* Shapes the tiles for so many rows, whose inputs end with so many groups after the last whole
   tile. */
AMX static void shape_tiles(long rows, long last)
{
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        int weights = tile == WEIGHTS || tile == LAST_WEIGHTS;
        shapes.bytes[tile] = tile == LAST_INPUTS ? (last ? last : 1) * 4 : TILE_LINE;
        shapes.rows[tile] = !weights ? rows : tile == WEIGHTS ? TILE_GROUPS : last ? last : 1;
    }
    _tile_loadconfig(&shapes);
}

#define CLEAR_SUMS \
    _tile_zero(0); \
    _tile_zero(1); \
    _tile_zero(2); \
    _tile_zero(3);

#define STORE_SUMS \
    _tile_stored(0, out, GROUP_LINE); \
    _tile_stored(1, (char *)out + TILE_LINE, GROUP_LINE); \
    _tile_stored(2, (char *)out + 2 * TILE_LINE, GROUP_LINE); \
    _tile_stored(3, (char *)out + 3 * TILE_LINE, GROUP_LINE);

#define ADD_PRODUCT(sums, inputs, weights) \
    for (long at = 0; at < TILE_BYTES; at += TILE_LINE) \
        _mm_prefetch(packed + TILES_AHEAD + sums * TILE_BYTES + at, _MM_HINT_T0); \
    _tile_loadd(weights, packed + sums * TILE_LINE, GROUP_LINE); \
    if (narrow) \
        _tile_dpbusd(sums, inputs, weights); \
    else \
        _tile_dpbf16ps(sums, inputs, weights);

#define ADD_PRODUCTS(inputs, weights) \
    _tile_loadd(inputs, x, step); \
    ADD_PRODUCT(0, inputs, weights) \
    ADD_PRODUCT(1, inputs, weights) \
    ADD_PRODUCT(2, inputs, weights) \
    ADD_PRODUCT(3, inputs, weights)

/* The sums of a block, once tiles are shaped.

   packed: a line for each group; x: the rows, `step` bytes from one to the next; out: [rows, 64],
   of four bytes each. */
AMX static inline __attribute__((always_inline)) void
sum_tiles(int narrow, const char *packed, long groups, const char *x, long step, void *out)
{
    CLEAR_SUMS
    for (; groups >= TILE_GROUPS; groups -= TILE_GROUPS) {
        ADD_PRODUCTS(INPUTS, WEIGHTS)
        packed += TILE_GROUPS * GROUP_LINE;
        x += TILE_LINE;
    }
    if (groups) {
        ADD_PRODUCTS(LAST_INPUTS, LAST_WEIGHTS)
    }
    for (long at = 0; at < MEANWHILE; at += TILE_LINE)
        _mm_prefetch(packed + TILES_AHEAD + at, _MM_HINT_T0);
    STORE_SUMS
}

/* A block's outputs of a few rows by vectors, with the very sums of tiles: while those are stored
   no weights are read, which counts where nothing else takes time. */
INLINE void few(int count, const Product *product, long block, const Rows *rows, float *y,
                long y_step, int adds)
{
    long groups = groups_of(0, product);
    const __m512i *weights = (const __m512i *)product->packed + block * groups * VECTORS;
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 acc[FEW_ROWS][VECTORS] = {0};
    __m512 even[FEW_ROWS][VECTORS] = {0}, odd[FEW_ROWS][VECTORS] = {0};
    for (long group = 0; group < groups; group++, weights += VECTORS) {
        for (int v = 0; v < VECTORS; v++)
            _mm_prefetch((const char *)(weights + v) + AHEAD, _MM_HINT_T0);
        for (int i = 0; i < count; i++) {
            const char *x = (const char *)rows->x + i * rows->step + 4 * group;
            __m512i both = _mm512_set1_epi32(*(const int32_t *)x);
            __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            __m512 second = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
            for (int v = 0; v < VECTORS; v++) {
                __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(weights[v], 16));
                __m512 high = _mm512_castsi512_ps(_mm512_and_si512(weights[v], upper));
                even[i][v] = _mm512_fmadd_ps(first, low, even[i][v]);
                odd[i][v] = _mm512_fmadd_ps(second, high, odd[i][v]);
            }
        }
        if ((group + 1) % TILE_GROUPS && group + 1 < groups)
            continue;
        for (int i = 0; i < count; i++)
            for (int v = 0; v < VECTORS; v++) {
                acc[i][v] = _mm512_add_ps(acc[i][v], _mm512_add_ps(even[i][v], odd[i][v]));
                even[i][v] = odd[i][v] = _mm512_setzero_ps();
            }
    }
    put_rows(0, count, VECTORS, (const __m512i(*)[VECTORS])acc, product, block * BLOCK, rows, 0, y,
             y_step, adds);
}

static void multiply_few(const Product *product, long count, const Rows *rows, float *y,
                         long y_step, int adds, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK;
    unsigned rounding = _mm_getcsr();
    _mm_setcsr(rounding | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); /* as with tiles */
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++)
        switch (count) {
            case 1: few(1, product, block, rows, y, y_step, adds); break;
            case 2: few(2, product, block, rows, y, y_step, adds); break;
            case 3: few(3, product, block, rows, y, y_step, adds); break;
        }
    _mm_setcsr(rounding);
}

/* Bytes of room that `multiply_by_tiles` takes: blocks of squeezed weights are unpacked there. */
static long unpacked_bytes(const Product *product)
{
    return product->stray_starts ? slabs_of(product) * SLAB_BYTES : 0;
}

/* y = W x + b, or y += W x + b; any number of rows, one part of the outputs out of so many. */
AMX static void multiply_by_tiles(int narrow, const Product *product, long count, const Rows *rows,
                                  float *y, long y_step, int adds, char *room, int part, int parts)
{
    long blocks = (product->out + BLOCK - 1) / BLOCK, groups = groups_of(narrow, product);
    long tiles = (count + TILE_ROWS - 1) / TILE_ROWS, shaped = 0;
    __m512i sums[TILE_ROWS][VECTORS];
    for (long block = blocks * part / parts; block < blocks * (part + 1) / parts; block++) {
        const char *packed = (const char *)product->packed + block * groups * GROUP_LINE;
        if (product->stray_starts) {
            unpack_block(product, block, room);
            packed = room;
        }
        for (long t = 0; t < tiles; t++) {
            long row = count * t / tiles, high = count * (t + 1) / tiles - row;
            const char *x = (const char *)rows->x + row * rows->step;
            if (high != shaped)
                shape_tiles(shaped = high, groups % TILE_GROUPS);
            if (narrow)
                sum_tiles(1, packed, groups, x, rows->step, sums);
            else
                sum_tiles(0, packed, groups, x, rows->step, sums);
            put_rows(narrow, high, VECTORS, sums, product, block * BLOCK, rows, row, y, y_step,
                     adds);
        }
    }
    _tile_release(); /* or every switch to another thread would save them */
}

#endif
