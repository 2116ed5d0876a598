/* Vectors of one set of instructions: LANES numbers of float32, and half as many of float64, fill a register each.

   gcc splits wider vectors into pieces that go through memory: code for sixteen numbers is ten times slower on registers
   of eight than code for eight. Included once for each set of instructions, before the headers that use it. */

#if WIDE
#define LANES 16
#else
#define LANES 8
#endif
typedef float NAME(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double NAME(dvec) __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
typedef float NAME(half) __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
#define vec NAME(vec)
#define dvec NAME(dvec)
#define half NAME(half)

INLINE dvec NAME(to_double)(const float *numbers) { return __builtin_convertvector(*(const half *)numbers, dvec); }

/* Return the sum of the numbers of a vector. */
INLINE double NAME(total)(dvec sums) {
#if WIDE
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
#else
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
#endif
}

INLINE double NAME(sum_of)(const float *numbers) {
  return NAME(total)(NAME(to_double)(numbers) + NAME(to_double)(numbers + LANES / 2));
}

/* Exchange parts of LANES rows, so that numbers whose places differ in one bit change places. */
#if WIDE
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#else
#define LOW_1 0, 8, 2, 10, 4, 12, 6, 14
#define HIGH_1 1, 9, 3, 11, 5, 13, 7, 15
#define LOW_2 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_2 2, 3, 10, 11, 6, 7, 14, 15
#define LOW_4 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_4 4, 5, 6, 7, 12, 13, 14, 15
#endif
#define EXCHANGE(bit, low, high)                   \
  for (int i = 0; i < LANES; i++)                  \
    if (!(i & bit)) {                              \
      vec a = r[i], b = r[i | bit];                \
      r[i] = __builtin_shufflevector(a, b, low);   \
      r[i | bit] = __builtin_shufflevector(a, b, high); \
    }

/* Transpose LANES x LANES numbers into vectors `step` numbers apart. */
INLINE void NAME(transpose)(const float *const rows[LANES], float *to, long step) {
  vec r[LANES];
  for (int i = 0; i < LANES; i++) r[i] = *(const vec *)rows[i];
  EXCHANGE(1, LOW_1, HIGH_1) EXCHANGE(2, LOW_2, HIGH_2) EXCHANGE(4, LOW_4, HIGH_4)
#if WIDE
  EXCHANGE(8, LOW_8, HIGH_8)
#endif
  for (int i = 0; i < LANES; i++) *(vec *)(to + i * step) = r[i];
}

#undef EXCHANGE
#undef LOW_1
#undef HIGH_1
#undef LOW_2
#undef HIGH_2
#undef LOW_4
#undef HIGH_4
#undef LOW_8
#undef HIGH_8
