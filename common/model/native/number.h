/* What weights, the cache and the rows of products are made of: bfloat16, or float32 in a decoder
   of its own (-DWIDE). */

#ifndef PACELINE_NUMBER_H
#define PACELINE_NUMBER_H

#include <stdint.h>

typedef uint16_t bf16;

#ifdef WIDE
typedef float Number;
#define TOGETHER 1 /* numbers in the four bytes of a lane */
#else
typedef bf16 Number;
#define TOGETHER 2
#endif

#endif
