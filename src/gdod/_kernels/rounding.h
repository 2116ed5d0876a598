/* What rounding may have done to eigenvectors, as methods/gdod.py has it. Included once for each set of instructions. */

INLINE double NAME(inner)(const double *a, const double *b, long n) {
  dvec sums = {};
  double rest = 0;
  long j = 0;
  for (; j + LANES / 2 <= n; j += LANES / 2) sums += *(const dvec *)(a + j) * *(const dvec *)(b + j);
  for (; j < n; j++) rest += a[j] * b[j];
  return rest + NAME(total)(sums);
}

/* For eigenvectors (rows of `vectors`) of a matrix with `values`, in float64: noise [n], task gradients along them
   [n, K], turn [n, n], and spread [n, K] = turn x along². */
static void NAME(rounding)(const double *matrix, const double *values, const double *vectors, const double *averages,
                           long n, long K, double error, double least, double *noise, double *along, double *turn,
                           double *spread, double *squares) {
  long step = rounded(n, 8);
  double lengths[n];
  for (long k = 0; k < n; k++) lengths[k] = matrix[k * (n + 1)];
  memset(squares, 0, K * step * sizeof(double));
  for (long a = 0; a < n; a++) {
    const double *vector = vectors + a * n;
    double weighted[n];
    for (long k = 0; k < n; k++) weighted[k] = lengths[k] * vector[k];
    noise[a] = error * NAME(inner)(weighted, vector, n);
    for (long i = 0; i < K; i++) {
      double sum = NAME(inner)(averages + i * n, vector, n);
      along[a * K + i] = sum;
      squares[i * step + a] = sum * sum;
    }
  }
  for (long a = 0; a < n; a++) {
    double row[step];
    memset(row, 0, sizeof row);
    for (long b = 0; b < n; b++) {
      double noises = noise[a] * noise[b] + least, gap = (values[a] - values[b]) * (values[a] - values[b]);
      row[b] = noises / (gap > noises ? gap : noises);
    }
    row[a] = 0;
    memcpy(turn + a * n, row, n * sizeof(double));
    for (long i = 0; i < K; i++) {
      dvec sums = {};
      for (long b = 0; b < step; b += LANES / 2) sums += *(const dvec *)(row + b) * *(const dvec *)(squares + i * step + b);
      spread[a * K + i] = NAME(total)(sums);
    }
  }
}

/* Σ_a lengths_a Σ_b turn_ab (kept_b - Σᵢ factors_ai along_bi)². */
static double NAME(moved)(const double *turn, const double *lengths, const double *kept, const double *factors,
                          const double *along, long n, long K, double *turned) {
  double total = 0;
  for (long b = 0; b < n; b++)
    for (long i = 0; i < K; i++) turned[i * n + b] = along[b * K + i];
  for (long a = 0; a < n; a++) {
    double left[n];
    memcpy(left, kept, sizeof left);
    for (long i = 0; i < K; i++) {
      double factor = factors[a * K + i];
      if (factor != 0)
        for (long b = 0; b < n; b++) left[b] -= factor * turned[i * n + b];
    }
    for (long b = 0; b < n; b++) left[b] *= left[b];
    total += lengths[a] * NAME(inner)(left, turn + a * n, n);
  }
  return total;
}

/* The factors of a vector's projections p [K] by agreement, as methods/agreement.py has them. */
INLINE void NAME(scale)(int agreement, const double *p, long K, double *factors) {
  double low = p[0], high = p[0], sum = 0;
  long positive = 0, negative = 0;
  for (long i = 0; i < K; i++) {
    low = p[i] < low ? p[i] : low, high = p[i] > high ? p[i] : high, sum += p[i];
    positive += p[i] > 0, negative += p[i] < 0;
  }
  long lead = positive - negative;
  long against = sum < 0 ? positive : negative; /* of the sign that the vector is turned away from */
  int kept = agreement == SIGN ? low * high >= 0 : positive + negative < K || against % 2 == 0;
  for (long i = 0; i < K; i++)
    if (agreement != MAJORITY) factors[i] = kept;
    else factors[i] = (lead > 0 ? p[i] > 0 : p[i] < 0) * fabs((double)lead) / K;
}

/* The square of what changes along a vector where doubtful projections have the sign given by `sign`. */
INLINE double NAME(changed)(int agreement, const char *doubtful, const double *projections, const double *rounded,
                            const double *before, const double *along, long K, double sign, double *work) {
  double total = 0, *turned = work, *factors = work + K;
  for (long i = 0; i < K; i++) turned[i] = doubtful[i] ? sign * projections[i] : rounded[i];
  NAME(scale)(agreement, turned, K, factors);
  for (long i = 0; i < K; i++) total += fabs((factors[i] - before[i]) * along[i]);
  return total * total;
}

/* Weights of rows by agreement of the tasks on the eigenvectors of a rounded matrix: `_weigh_rounded` in methods/gdod.py,
   without refinement. Returns how many vectors count as directions, or why there is no result. */
static long NAME(weigh)(Weighing *w, double *memory) {
  long n = w->n, K = w->tasks, inside = 0;
  if (!NAME(eigh)(w->matrix, n, w->values, w->vectors, memory)) return NOT_CONVERGED;
  const double *values = w->values, largest = values[n - 1];
  NAME(rounding)(w->matrix, values, w->vectors, w->averages, n, K, w->error, (w->eigh_error * largest) *
                 (w->eigh_error * largest), w->noise, w->along, w->turn, w->spread, memory);
  double *rounded = memory, *factors = rounded + n * K, *kept = factors + n * K, *lengths = kept + n;
  double *tasks = lengths + n, *work = tasks + K, *rest = work + 2 * K;
  char doubtful[K];
  memset(tasks, 0, K * sizeof(double));
  memset(w->rows, 0, n * sizeof(double));
  for (long a = 0; a < n; a++) {
    double root = sqrt(values[a] > 0 ? values[a] : 0);
    for (long i = 0; i < K; i++) {
      double projection = root * w->along[a * K + i];
      rounded[a * K + i] = projection, tasks[i] += projection * projection;
    }
  }
  for (long i = 0; i < K; i++)
    if (!(tasks[i] > w->balanced)) return NOT_PRECISE; /* `Gram.rounded` then needs more than projections */
  double floor = n * w->row_error * w->row_error * largest, moved = 0, allowed = 0, *projections = w->projections;
  for (long a = 0; a < n; a++) {
    const double *along = w->along + a * K;
    double *own = rounded + a * K, *scaled = factors + a * K, noise = w->noise[a], plain = 0;
    int is_inside = values[a] > fmax(noise * w->told_apart, floor) && (!w->rank || a >= n - w->rank), doubts = 0;
    lengths[a] = (values[a] > 0 ? values[a] : 0) + noise, kept[a] = 0;
    for (long i = 0; i < K; i++) {
      work[i] = own[i], plain += fabs(along[i]);
      if (!(own[i] * own[i] > w->zero * w->zero * tasks[i])) own[i] = 0;
      doubts |= doubtful[i] = along[i] * along[i] < w->spread[a * K + i] * w->doubt * w->doubt;
    }
    NAME(scale)(w->agreement, own, K, scaled);
    if (!is_inside) {
      memset(scaled, 0, K * sizeof(double));
      if (!w->rank) moved += (lengths[a] + 3 * noise) * plain * plain;
      continue;
    }
    for (long i = 0; i < K; i++) kept[a] += scaled[i] * along[i];
    memcpy(projections + inside * K, work, K * sizeof(double));
    memcpy(projections + (n + inside) * K, scaled, K * sizeof(double));
    inside++;
    if (!doubts) continue;
    double projection[K]; /* `work` is used below */
    memcpy(projection, work, sizeof projection);
    double one = NAME(changed)(w->agreement, doubtful, projection, own, scaled, along, K, -1, work);
    double other = NAME(changed)(w->agreement, doubtful, projection, own, scaled, along, K, 1, work);
    moved += lengths[a] * fmax(one, other);
  }
  moved += NAME(moved)(w->turn, lengths, kept, factors, w->along, n, K, rest);
  for (long a = 0; a < n; a++) {
    const double *vector = w->vectors + a * n;
    allowed += values[a] * kept[a] * kept[a];
    if (kept[a] != 0)
      for (long k = 0; k < n; k++) w->rows[k] += kept[a] * vector[k];
  }
  if (moved <= w->of_update * w->of_update * allowed) return inside;
  double sum = 0; /* the squared length of the plain sum */
  for (long k = 0; k < n; k++) {
    double with_sum = 0, own = 0;
    for (long i = 0; i < K; i++) own += w->averages[i * n + k];
    for (long j = 0; j < n && own != 0; j++)
      for (long i = 0; i < K; i++) with_sum += w->matrix[k * n + j] * w->averages[i * n + j];
    sum += own * with_sum;
  }
  return moved <= w->of_sum * w->of_sum * sum ? inside : NOT_PRECISE;
}
