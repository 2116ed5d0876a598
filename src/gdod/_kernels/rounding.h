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
