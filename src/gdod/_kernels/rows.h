/* The kernels, compiled once for each set of instructions: `compiled.c` includes this file with another NAME (the suffix
   of all names) and WIDE (whether there are 32 registers of 16 numbers, as in AVX-512, or 16 of 8).

   Numbers are float32. Inner products are summed in float32 over a few hundred numbers, and these sums in float64.
   The places of a batch lie group after group. Where rows are made, LANES groups side by side fill a vector, so that
   one instruction works for as many rows; the vectors of all groups and tasks are the units of a column of rows. */

#if WIDE
enum { NAME(ROW_I) = 6, NAME(ROW_J) = 4, NAME(GRAM_A) = 8, NAME(GRAM_U) = 3, NAME(MIX) = 16, NAME(MIX_V) = 4 };
enum { NAME(AGREE_P) = 16, NAME(TASK_I) = 3, NAME(TASK_J) = 4, NAME(ADD_O) = 8, NAME(ADD_V) = 3 };
#else
enum { NAME(ROW_I) = 3, NAME(ROW_J) = 4, NAME(GRAM_A) = 4, NAME(GRAM_U) = 3, NAME(MIX) = 8, NAME(MIX_V) = 2 };
enum { NAME(AGREE_P) = 8, NAME(TASK_I) = 3, NAME(TASK_J) = 3, NAME(ADD_O) = 4, NAME(ADD_V) = 3 };
#endif
#define ROW_I NAME(ROW_I)
#define ROW_J NAME(ROW_J)
#define GRAM_A NAME(GRAM_A)
#define GRAM_U NAME(GRAM_U)
#define MIX NAME(MIX)
#define MIX_V NAME(MIX_V)
#define AGREE_P NAME(AGREE_P)
#define TASK_I NAME(TASK_I)
#define TASK_J NAME(TASK_J)
#define ADD_O NAME(ADD_O)
#define ADD_V NAME(ADD_V)

/* The rows of place p of LANES groups in a matrix; NULL where a group has no such place. */
INLINE void NAME(places_of)(const Cut *cut, long vector, long p, const float *matrix, long width,
                            const float *rows[LANES]) {
  for (int lane = 0; lane < LANES; lane++) {
    long g = vector * LANES + lane;
    int has = g < cut->groups && cut->bounds[g] + p < cut->bounds[g + 1];
    rows[lane] = has ? matrix + (cut->bounds[g] + p) * width : NULL;
  }
}

/* Lay LANES rows of `width` numbers (zeros where there is none) out side by side: column i becomes the vector to[i * step].
   With `ones`, one more column is 1 where there is a row. */
static void NAME(side_by_side)(const float *const rows[LANES], long width, int ones, float *to, long step) {
  static const float nothing[LANES];
  const float *at[LANES];
  long column = 0;
  for (; column + LANES <= width; column += LANES) {
    for (int lane = 0; lane < LANES; lane++) at[lane] = rows[lane] ? rows[lane] + column : nothing;
    NAME(transpose)(at, to + column * step, step);
  }
  for (; column < width; column++)
    for (int lane = 0; lane < LANES; lane++) to[column * step + lane] = rows[lane] ? rows[lane][column] : 0.f;
  if (ones)
    for (int lane = 0; lane < LANES; lane++) to[width * step + lane] = rows[lane] ? 1.f : 0.f;
}

/* Add the inner products of GRAM_A rows from `a` on with those of `count` units from `u` on. */
INLINE void NAME(add_some)(const float *rows, long most, long columns, long units, long a, long u, int count,
                           double *total) {
  vec sums[GRAM_A][GRAM_U] = {};
  const float *left = rows + a / LANES * most * LANES + a % LANES, *right = rows + u * most * LANES;
  for (long column = 0; column < columns; column++)
    for (int j = 0; j < count; j++) {
      vec other = *(const vec *)(right + (j * most + column) * LANES);
      for (int i = 0; i < GRAM_A; i++) sums[i][j] += left[column * LANES + i] * other;
    }
  for (int i = 0; i < GRAM_A; i++)
    for (int j = 0; j < count; j++)
      for (int lane = 0; lane < LANES; lane++) total[((a + i) * units + u + j) * LANES + lane] += sums[i][j][lane];
}

/* Add the inner products of the first columns of rows [units][most][LANES] to total [units * LANES][units * LANES], for pairs of
   units u <= v. */
static void NAME(add_products)(const float *rows, long most, long columns, long units, double *total) {
  for (long a = 0; a < units * LANES; a += GRAM_A) {
    long u = a / LANES;
    for (; u + GRAM_U <= units; u += GRAM_U) NAME(add_some)(rows, most, columns, units, a, u, GRAM_U, total);
    if (units - u == 2) NAME(add_some)(rows, most, columns, units, a, u, 2 < GRAM_U ? 2 : 0, total);
    if (units - u == 1) NAME(add_some)(rows, most, columns, units, a, u, 1 < GRAM_U ? 1 : 0, total);
  }
}

/* Lay activations out with groups side by side, ROW_I inputs of all places together, [vectors][I / ROW_I][P][ROW_I][LANES]:
   what is multiplied at a time lies in one piece. */
static void NAME(lay_out)(Product *m, int thread, int threads) {
  const Cut *cut = &m->cut;
  const float *rows[LANES];
  long I = m->I, P = cut->largest, down = (I + ROW_I - 1) / ROW_I;
  float *place = m->tiles + thread * m->tile; /* of one place; later on it holds rows */
  for (long part = thread; part < cut->vectors * P; part += threads) {
    long vector = part / P, p = part % P;
    NAME(places_of)(cut, vector, p, m->x, m->inputs, rows);
    NAME(side_by_side)(rows, m->inputs, m->ones, place, LANES);
    for (long i = 0; i < I; i += ROW_I)
      memcpy(m->x_lanes + ((vector * down + i / ROW_I) * P + p) * ROW_I * LANES, place + i * LANES,
             (I - i < ROW_I ? I - i : ROW_I) * LANES * sizeof(float));
  }
}

/* Lay `wide` outputs of the cotangents, from `o` on, out in the same way, [vectors][P][wide][K][LANES]. */
static void NAME(lay_out_some)(const Product *m, long o, long wide, float *to) {
  const Cut *cut = &m->cut;
  const float *rows[LANES];
  long K = m->tasks, real = m->outputs - o < wide ? m->outputs - o : wide;
  for (long part = 0; part < cut->vectors * cut->largest; part++, to += wide * K * LANES) {
    for (long k = 0; k < K; k++) {
      NAME(places_of)(cut, part / cut->largest, part % cut->largest, m->d + k * m->d_step + o, m->outputs, rows);
      NAME(side_by_side)(rows, real, 0, to + k * LANES, K * LANES);
    }
    memset(to + real * K * LANES, 0, (wide - real) * K * LANES * sizeof(float));
  }
}

/* Make the rows of `count` inputs and `wide` outputs, for the groups of one vector. */
INLINE void NAME(rows_of_some)(Product *m, const float *x, const float *d, long vector, int count, long wide, float *rows) {
  long K = m->tasks;
  for (long j = 0; j < wide * K; j += ROW_J) {
    vec sums[ROW_I][ROW_J] = {};
    for (long p = 0; p < m->cut.largest; p++) {
      const float *left = x + p * ROW_I * LANES, *right = d + (p * wide * K + j) * LANES;
      for (int b = 0; b < ROW_J; b++)
        for (int a = 0; a < count; a++) sums[a][b] += *(const vec *)(left + a * LANES) * *(const vec *)(right + b * LANES);
    }
    for (int b = 0; b < ROW_J; b++) {
      float *to = rows + ((vector * K + (j + b) % K) * ROW_I * SPAN + (j + b) / K) * LANES;
      for (int a = 0; a < count; a++) *(vec *)(to + a * wide * LANES) = sums[a][b];
    }
  }
}

/* Make some columns of the rows at a time, and add their inner products. */
static void NAME(by_rows)(Product *m, int thread, int threads) {
  const Cut *cut = &m->cut;
  long K = m->tasks, units = cut->vectors * K, I = m->I, O = m->O;
  float *rows = m->tiles + thread * m->tile, *d_lanes = rows + ROW_I * SPAN * units * LANES;
  double *total = m->totals + thread * (units * units * LANES * LANES);
  long across = (O + m->span - 1) / m->span, down = (I + ROW_I - 1) / ROW_I, tiles = across * down, laid_out = -1;
  for (long tile = tiles * thread / threads; tile < tiles * (thread + 1) / threads; tile++) {
    long o = tile / down * m->span, i = tile % down * ROW_I;
    long wide = O - o < m->span ? O - o : m->span, count = I - i < ROW_I ? I - i : ROW_I;
    if (laid_out != o) NAME(lay_out_some)(m, o, wide, d_lanes), laid_out = o;
    for (long vector = 0; vector < cut->vectors; vector++) {
      const float *x = m->x_lanes + (vector * down * ROW_I + i) * cut->largest * LANES;
      const float *d = d_lanes + vector * cut->largest * wide * K * LANES;
      if (count == ROW_I) NAME(rows_of_some)(m, x, d, vector, ROW_I, wide, rows);
#define CASE(number) else if (ROW_I > number && count == number) NAME(rows_of_some)(m, x, d, vector, number, wide, rows);
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#undef CASE
    }
    NAME(add_products)(rows, ROW_I * SPAN, count * wide, units, total);
  }
}

/* Store the products of AGREE_P (or fewer) places of x with the LANES places of xt [inputs][LANES]. */
INLINE void NAME(agree_some)(const float *x, long inputs, const float *xt, float ones, int count, float *agree) {
  vec sums[AGREE_P];
  for (int p = 0; p < count; p++) sums[p] = (vec){} + ones;
  for (long i = 0; i < inputs; i++) {
    vec right = *(const vec *)(xt + i * LANES);
    for (int p = 0; p < count; p++) sums[p] += x[p * inputs + i] * right;
  }
  for (int p = 0; p < count; p++) *(vec *)(agree + p * LANES) = sums[p];
}

/* mixed[p][task][v] = sum over q of agree[p][q] d[task][q][v], for some vectors v of the outputs. */
INLINE void NAME(mix_some)(const float *agree, const float *d, long outputs, long places, int count, int wide,
                           float *mixed, long step, int begun) {
  vec sums[MIX][MIX_V];
  for (int p = 0; p < count; p++)
    for (int v = 0; v < wide; v++) sums[p][v] = begun ? *(vec *)(mixed + p * step + v * LANES) : (vec){};
  for (long q = 0; q < places; q++)
    for (int v = 0; v < wide; v++) {
      vec right = *(const vec *)(d + q * outputs + v * LANES);
      for (int p = 0; p < count; p++) sums[p][v] += agree[p * LANES + q] * right;
    }
  for (int p = 0; p < count; p++)
    for (int v = 0; v < wide; v++) *(vec *)(mixed + p * step + v * LANES) = sums[p][v];
}

/* Add the products of cotangents of `rows` tasks with mixed ones of `columns` tasks, over the places of a group. */
INLINE void NAME(multiply_some)(const float *d, long d_step, long outputs, const float *mixed, long K, long places,
                                int rows, int columns, int wide, float *sums) {
  vec parts[TASK_I][TASK_J] = {};
  for (long p = 0; p < places; p++)
    for (int v = 0; v < wide; v++) {
      vec right[TASK_J];
      for (int j = 0; j < columns; j++) right[j] = *(const vec *)(mixed + (p * K + j) * wide * LANES + v * LANES);
      for (int i = 0; i < rows; i++) {
        vec left = *(const vec *)(d + i * d_step + p * outputs + v * LANES);
        for (int j = 0; j < columns; j++) parts[i][j] += left * right[j];
      }
    }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) *(vec *)(sums + (i * K + j) * LANES) += parts[i][j];
}

/* Add what `wide` vectors of the outputs, from `o` on, give to the inner products of groups g and h. */
INLINE void NAME(pair)(Product *m, long g, long h, long o, int wide, const float *agree, float *mixed, float *sums) {
  const long *bounds = m->cut.bounds;
  long K = m->tasks, O = m->outputs, step = K * wide * LANES, size = bounds[g + 1] - bounds[g];
  int at_once = MIX / wide;
  for (long k = 0; k < K; k++)
    for (long first = bounds[h]; first < bounds[h + 1]; first += LANES) {
      const float *d = m->d + k * m->d_step + first * O + o;
      long places = bounds[h + 1] - first < LANES ? bounds[h + 1] - first : LANES, p = 0;
      const float *own = agree + (first - bounds[h]) * bounds[h + 1] + bounds[g] * LANES;
      float *to = mixed + k * wide * LANES;
      int begun = first > bounds[h];
      for (; p + at_once <= size; p += at_once)
        NAME(mix_some)(own + p * LANES, d, O, places, at_once, wide, to + p * step, step, begun);
      for (; p < size; p++) NAME(mix_some)(own + p * LANES, d, O, places, 1, wide, to + p * step, step, begun);
    }
  for (long i = 0; i < K; i += TASK_I)
    for (long j = 0; j < K; j += TASK_J) {
      const float *d = m->d + i * m->d_step + bounds[g] * O + o, *right = mixed + j * wide * LANES;
      float *to = sums + (i * K + j) * LANES;
      int rows = K - i < TASK_I ? K - i : TASK_I, columns = K - j < TASK_J ? K - j : TASK_J;
#define CASE(r, c)                                                      \
  if (r <= TASK_I && c <= TASK_J && rows == r && columns == c)          \
    NAME(multiply_some)(d, m->d_step, O, right, K, size, r, c, wide, to);
      CASE(3, 4) CASE(3, 3) CASE(3, 2) CASE(3, 1) CASE(2, 4) CASE(2, 3) CASE(2, 2) CASE(2, 1)
      CASE(1, 4) CASE(1, 3) CASE(1, 2) CASE(1, 1)
#undef CASE
    }
}

/* Inner products without rows, for each group h with all groups g up to h. */
static void NAME(between)(Product *m, int thread, int threads) {
  const long *bounds = m->cut.bounds;
  long K = m->tasks, n = m->cut.groups, I = m->inputs, O = m->outputs;
  float *work = m->works + thread * m->work;
  float *xt = work, *agree = xt + I * LANES, *mixed = agree + rounded(m->cut.largest, LANES) * bounds[n];
  float *sums = mixed + m->cut.largest * K * MIX_V * LANES;
  for (long h = 0; h < n; h++) {
    long turn = h % (2 * threads), end = bounds[h + 1];
    if ((turn < threads ? turn : 2 * threads - 1 - turn) != thread) continue; /* later groups have more to do */
    for (long first = bounds[h]; first < end; first += LANES) {
      const float *rows[LANES];
      for (int q = 0; q < LANES; q++) rows[q] = first + q < end ? m->x + (first + q) * I : NULL;
      NAME(side_by_side)(rows, I, 0, xt, LANES);
      float *own = agree + (first - bounds[h]) * end;
      long p = 0;
      for (; p + AGREE_P <= end; p += AGREE_P)
        NAME(agree_some)(m->x + p * I, I, xt, m->ones, AGREE_P, own + p * LANES);
      for (; p < end; p++) NAME(agree_some)(m->x + p * I, I, xt, m->ones, 1, own + p * LANES);
    }
    memset(sums, 0, (h + 1) * K * K * LANES * sizeof(float));
    long o = 0;
    for (; o + MIX_V * LANES <= O; o += MIX_V * LANES)
      for (long g = 0; g <= h; g++) NAME(pair)(m, g, h, o, MIX_V, agree, mixed, sums + g * K * K * LANES);
    for (; MIX_V > 2 && o + 2 * LANES <= O; o += 2 * LANES)
      for (long g = 0; g <= h; g++) NAME(pair)(m, g, h, o, MIX_V > 2 ? 2 : 1, agree, mixed, sums + g * K * K * LANES);
    for (; o < O; o += LANES)
      for (long g = 0; g <= h; g++) NAME(pair)(m, g, h, o, 1, agree, mixed, sums + g * K * K * LANES);
    for (long g = 0; g <= h; g++)
      for (long i = 0; i < K; i++)
        for (long j = g < h ? 0 : i; j < K; j++) { /* (i, j) and (j, i) of one group are rounded differently */
          double value = NAME(sum_of)(sums + ((g * K + i) * K + j) * LANES);
          m->gram[(g * K + i) * n * K + h * K + j] += value;
          if (g < h || i < j) m->gram[(h * K + j) * n * K + g * K + i] += value;
        }
  }
}

/* grad[o][i] = sum over places of v[o][p] x[p][i], for some outputs and the inputs of a panel. */
INLINE void NAME(sum_some)(const float *v, const float *x, long places, int wide, float *sums) {
  vec parts[ADD_O][ADD_V] = {};
  for (long p = 0; p < places; p++)
    for (int i = 0; i < wide; i++) {
      vec right = *(const vec *)(x + (p * wide + i) * LANES);
      for (int o = 0; o < ADD_O; o++) parts[o][i] += v[p * ADD_O + o] * right;
    }
  for (int o = 0; o < ADD_O; o++)
    for (int i = 0; i < wide; i++) *(vec *)(sums + (o * ADD_V + i) * LANES) = parts[o][i];
}

INLINE void NAME(sum_panel)(const float *v, const float *x, long places, int wide, float *sums) {
  if (wide == ADD_V) NAME(sum_some)(v, x, places, ADD_V, sums);
  else if (wide == 2) NAME(sum_some)(v, x, places, 2, sums);
  else NAME(sum_some)(v, x, places, 1, sums);
}

/* Add the inner products of `rows` tiles with `columns` others, `size` numbers apart, in float64. */
INLINE void NAME(multiply_tiles)(const float *left, const float *right, long size, int rows, int columns, int wide,
                                 double *total, long K) {
  dvec sums[TILES][TILES] = {};
  for (int o = 0; o < ADD_O; o++)
    for (int part = 0; part < wide * 2; part++) {
      long at = o * ADD_V * LANES + part * (LANES / 2);
      dvec others[TILES];
      for (int j = 0; j < columns; j++) others[j] = NAME(to_double)(right + j * size + at);
      for (int i = 0; i < rows; i++) {
        dvec own = NAME(to_double)(left + i * size + at);
        for (int j = 0; j < columns; j++) sums[i][j] += own * others[j];
      }
    }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) total[i * K + j] += NAME(total)(sums[i][j]);
}

/* The inner products of the task gradients, where all places are one group, in float64: some columns of all are made at a
   time. Of those of a task with others, those with later ones are right. */
static void NAME(of_tasks)(Combined *m, int thread, int threads) {
  long K = m->tasks, O = m->outputs, B = m->places, step = m->step, size = ADD_O * ADD_V * LANES;
  float *panels = m->panels + thread * (K * B * ADD_O + K * size), *sums = panels + K * B * ADD_O;
  double *total = m->totals + thread * K * K;
  for (long panel = thread; panel * ADD_O < O; panel += threads) {
    long o = panel * ADD_O, count = O - o < ADD_O ? O - o : ADD_O;
    if (count < ADD_O) memset(panels, 0, K * B * ADD_O * sizeof(float));
    for (long k = 0; k < K; k++)
      for (long p = 0; p < B; p++) {
        float *to = panels + (k * B + p) * ADD_O;
        const float *from = m->d + k * m->d_step + p * O + o;
        if (count == ADD_O) memcpy(to, from, ADD_O * sizeof(float));
        else memcpy(to, from, count * sizeof(float));
      }
    for (long first = 0; first < step; first += ADD_V * LANES) {
      int wide = step - first < ADD_V * LANES ? (step - first) / LANES : ADD_V;
      for (long k = 0; k < K; k++) {
        NAME(sum_panel)(panels + k * B * ADD_O, m->padded + first * B, B, wide, sums + k * size);
      }
      for (long i = 0; i < K; i += TILES)
        for (long j = i; j < K; j += TILES) {
          const float *left = sums + i * size, *right = sums + j * size;
          double *to = total + i * K + j;
          int rows = K - i < TILES ? K - i : TILES, columns = K - j < TILES ? K - j : TILES;
#define CASE(r, c) \
  if (rows == r && columns == c) NAME(multiply_tiles)(left, right, size, r, c, wide, to, K);
          CASE(3, 3) CASE(3, 2) CASE(3, 1) CASE(2, 2) CASE(1, 1)
#undef CASE
        }
    }
  }
}

/* Sum the cotangents of some places over tasks, each with its weight, into panels [O / ADD_O][places][ADD_O]. */
static void NAME(mix)(Combined *m, int thread, int threads) {
  long K = m->tasks, O = m->outputs, B = m->places;
  for (long p = B * thread / threads; p < B * (thread + 1) / threads; p++) {
    const float *weights = m->weights + m->group[p] * K, *d = m->d + p * O;
    for (long o = 0; o < O; o += ADD_O) {
      float *to = m->panels + o * B + p * ADD_O;
      if (O - o >= ADD_O) {
        half sum = {};
        for (long k = 0; k < K; k++) sum += weights[k] * *(const half *)(d + k * m->d_step + o);
        *(half *)to = sum;
        continue;
      }
      memset(to, 0, ADD_O * sizeof(float));
      for (long k = 0; k < K; k++)
        for (long j = 0; j < O - o; j++) to[j] += weights[k] * d[k * m->d_step + o + j];
    }
  }
}

/* The weighted sum of the rows: cotangents that `mix` has summed are multiplied once. */
static void NAME(combine)(Combined *m, int thread, int threads) {
  long I = m->inputs, O = m->outputs, B = m->places, step = m->step;
  for (long panel = thread; panel * ADD_O < O; panel += threads) {
    long o = panel * ADD_O, count = O - o < ADD_O ? O - o : ADD_O;
    for (long first = 0; first < step; first += ADD_V * LANES) {
      float sums[ADD_O * ADD_V * LANES];
      int wide = step - first < ADD_V * LANES ? (step - first) / LANES : ADD_V;
      NAME(sum_panel)(m->panels + o * B, m->padded + first * B, B, wide, sums);
      for (long j = 0; j < count; j++) {
        const float *own = sums + j * ADD_V * LANES;
        long last = I - first < wide * LANES ? I - first : wide * LANES;
        for (long i = 0; i < last; i++) m->weight[(o + j) * I + first + i] = own[i];
        if (m->bias && first <= I && I < first + wide * LANES) m->bias[o + j] = own[I - first];
      }
    }
  }
}

/* The inner products of all rows with a weighted sum of them, weights [groups, tasks], in float64. */
static void NAME(product_with)(const Combined *m, const double *weights, double *memory, double *products) {
  long K = m->tasks, I = m->inputs, O = m->outputs, step = rounded(O, 8), ones = m->ones;
  double *v = memory, *total = v + step;
  memset(total, 0, (I + ones) * step * sizeof(double));
  for (long p = 0; p < m->places; p++) {
    memset(v, 0, step * sizeof(double));
    for (long k = 0; k < K; k++) {
      const float *d = m->d + k * m->d_step + p * O;
      double weight = weights[m->group[p] * K + k];
      for (long o = 0; o < O; o++) v[o] += weight * d[o];
    }
    for (long i = 0; i < I + ones; i++) {
      double x = i < I ? m->x[p * I + i] : 1;
      for (long o = 0; o < O; o++) total[i * step + o] += x * v[o];
    }
  }
  for (long p = 0; p < m->places; p++) {
    memset(v, 0, step * sizeof(double));
    for (long i = 0; i < I + ones; i++) {
      double x = i < I ? m->x[p * I + i] : 1;
      for (long o = 0; o < O; o++) v[o] += x * total[i * step + o];
    }
    for (long k = 0; k < K; k++) {
      const float *d = m->d + k * m->d_step + p * O;
      double sums[8] = {}, last = 0;
      long o = 0;
      for (; o + 8 <= O; o += 8)
        for (int c = 0; c < 8; c++) sums[c] += v[o + c] * d[o + c];
      for (; o < O; o++) last += v[o] * d[o];
      for (int c = 0; c < 8; c++) last += sums[c];
      products[m->group[p] * K + k] += last;
    }
  }
}

/* The inner product of two vectors of a table, in some parts. */
INLINE dvec NAME(dot)(const float *a, const float *b, long width) {
  dvec sums = {};
  for (long c = 0; c < width; c += LANES / 2) sums += NAME(to_double)(a + c) * NAME(to_double)(b + c);
  return sums;
}

/* Add the vectors of one id, summed by group into merged [count][K][width], of the groups in `which`, to the Gram matrix:
   pair by pair, or as columns of rows, whose inner products are added when there are enough. */
INLINE void NAME(add_id)(Table *m, Share *own, const float *merged, const long *which, long count) {
  long K = m->tasks, N = m->groups * K, width = m->width, units = own->units;
  if (count < FEW_GROUPS) {
    for (long a = 0; a < count; a++)
      for (long b = a; b < count; b++)
        for (long i = 0; i < K; i++)
          for (long j = 0; j < K; j++) {
            double value = NAME(total)(NAME(dot)(merged + (a * K + i) * width, merged + (b * K + j) * width, width));
            own->gram[(which[a] * K + i) * N + which[b] * K + j] += value;
            if (a < b) own->gram[(which[b] * K + j) * N + which[a] * K + i] += value;
          }
    return;
  }
  float *columns = own->columns + own->filled * LANES;
  for (long u = 0; u < units; u++) memset(columns + u * own->most * LANES, 0, width * LANES * sizeof(float));
  for (long a = 0; a < count; a++)
    for (long k = 0; k < K; k++) {
      float *to = columns + (which[a] / LANES * K + k) * own->most * LANES + which[a] % LANES;
      for (long c = 0; c < width; c++) to[c * LANES] = merged[(a * K + k) * width + c];
    }
  if ((own->filled += width) + width > own->most) {
    NAME(add_products)(own->columns, own->most, own->filled, units, own->total);
    own->filled = 0;
  }
}

/* The inner products of the rows of tables: each thread has the ids that fall to its share. */
static void NAME(table)(Table *m, int thread, int threads) {
  long E = m->entries, K = m->tasks, width = m->width, size = K * width;
  Share own = share_of(m, thread);
  memset(own.first, -1, own.slots * sizeof(int));
  long distinct = 0;
  for (long e = 0; e < E; e++) {
    unsigned long id = m->ids[e], hash = id * 0x9E3779B97F4A7C15u;
    if (hash % threads != (unsigned long)thread) continue;
    long slot = hash >> own.shift;
    while (own.first[slot] >= 0 && m->ids[own.first[slot]] != m->ids[e]) slot = (slot + 1) & (own.slots - 1);
    if (own.first[slot] < 0) own.first[slot] = own.heads[distinct++] = e;
    else own.next[own.last[own.first[slot]]] = e;
    own.last[own.first[slot]] = e;
    own.next[e] = -1;
  }
  for (long number = 0; number < distinct; number++) {
    long count = 0, e = own.heads[number];
    if (own.next[e] < 0) { /* an id that occurs once meets only itself */
      double *sums = own.alone + m->group[e] * K * K * 8;
      for (long i = 0; i < K; i++)
        for (long j = i; j < K; j++) {
          const float *a = m->values + (i * E + e) * width, *b = m->values + (j * E + e) * width;
          *(dvec *)(sums + (i * K + j) * 8) += NAME(dot)(a, b, width);
        }
      continue;
    }
    for (; e >= 0; e = own.next[e]) {
      long group = m->group[e];
      int known = own.place[group] >= 0;
      if (!known) own.which[count] = group, own.place[group] = count++;
      float *to = own.merged + own.place[group] * size;
      for (long k = 0; k < K; k++)
        for (long c = 0; c < width; c += 8) {
          eight value = *(const eight *)(m->values + (k * E + e) * width + c), *at = (eight *)(to + k * width + c);
          *at = known ? value + *at : value + (eight){};
        }
    }
    for (long a = 0; a < count; a++) own.place[own.which[a]] = -1;
    NAME(add_id)(m, &own, own.merged, own.which, count);
  }
  NAME(add_products)(own.columns, own.most, own.filled, own.units, own.total);
  for (long g = 0; g < m->groups; g++)
    for (long i = 0; i < K; i++)
      for (long j = i; j < K; j++) {
        double value = NAME(total)(*(const dvec *)(own.alone + ((g * K + i) * K + j) * 8));
        own.gram[(g * K + i) * m->groups * K + g * K + j] += value;
        if (i < j) own.gram[(g * K + j) * m->groups * K + g * K + i] += value;
      }
}

/* Add to the gradient of a table, for each entry, its vectors summed over tasks with the weights of its group. */
static void NAME(table_sum)(const Table *m, const float *weights, long d_step, float *grad) {
  long K = m->tasks, width = m->width;
  for (long e = 0; e < m->entries; e++) {
    float *to = grad + m->ids[e] * width;
    for (long c = 0; c < width; c += 8) {
      eight sum = *(eight *)(to + c);
      for (long k = 0; k < K; k++)
        sum += weights[m->group[e] * K + k] * *(const eight *)(m->values + k * d_step + e * width + c);
      *(eight *)(to + c) = sum;
    }
  }
}

#undef ROW_I
#undef ROW_J
#undef GRAM_A
#undef GRAM_U
#undef MIX
#undef MIX_V
#undef AGREE_P
#undef TASK_I
#undef TASK_J
#undef ADD_O
#undef ADD_V
