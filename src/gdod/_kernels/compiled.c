/* Inner products and weighted sums of rows in float32, for `gdod.rows.kernels`, which knows when they may be used, and
   the eigendecomposition of their Gram matrix, for `gdod.methods`.

   torch's own operations take a call each for what a loop does here, write rows to memory to read them again, and use
   half of the vector units of many processors. Nothing here knows tensors: addresses and sizes come from Python, which
   has checked them. Threads are those of the OpenMP runtime that torch has loaded, so that no others compete with them. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

enum { COLUMNS = 256, FEW_GROUPS = 4 }; /* of tables, added at a time; groups of an id up to which pairs are quicker */
enum { TILES = 3 }; /* of tasks, multiplied with others at a time */
enum { SPAN = 32, NEAR = 1 << 18 }; /* outputs whose rows are made at a time at most; numbers that stay in the cache */
#define TINY 1e-140 /* beside a matrix with a largest number of 1; its square is not lost */
enum { KEPT = 1 << 26 }; /* bytes of memory that are kept for the next call */

typedef struct {
  const long *bounds; /* group g has the places from bounds[g] up to bounds[g + 1] */
  long groups, largest, vectors; /* their number, the size of the largest, vectors of that many lanes */
} Cut;

typedef struct {
  Cut cut;
  const float *x, *d; /* activations [places, inputs], cotangents [tasks][places, outputs] */
  long d_step, inputs, outputs, tasks, I, O; /* from task to task; I: with the ones, O: filled up with zeros */
  int ones;
  double *gram;
  float *x_lanes, *tiles, *works;
  double *totals;
  long span, tile, work; /* outputs whose rows are made at a time; numbers of memory for a thread */
} Product;

typedef struct {
  const float *x, *d, *weights; /* weights [groups, tasks] */
  const long *group; /* of each place */
  long d_step, inputs, outputs, tasks, places, step, ones;
  float *padded, *panels, *weight, *bias;
  double *totals;
} Combined;

typedef struct {
  const long *ids, *group; /* of each entry */
  const float *values; /* [tasks, entries, width] */
  long entries, tasks, width, groups;
  float *memory;
  long share; /* numbers of memory for a thread */
} Table;

enum { SIGN, PRODUCT, MAJORITY }; /* when tasks agree */
enum { NOT_CONVERGED = -1, NOT_PRECISE = -2 };
typedef struct {
  const double *matrix, *averages; /* [n, n], [tasks, n] */
  long n, tasks, rank; /* rank: 0 for all */
  int agreement;
  double error, row_error, balanced; /* of the Gram matrix; the length, squared, from which on tasks are as large as rows */
  double eigh_error, told_apart, doubt, zero, of_update, of_sum; /* constants of methods/gdod.py */
  double *rows, *projections; /* results [n], [2 n, tasks]: of vectors that are directions, and from n on their factors */
  double *values, *noise, *along, *spread, *turn, *vectors; /* [n], [n], [n, tasks], [n, tasks], [n, n], [n, n] */
} Weighing;

/* What a thread works with, for the ids that fall to it. */
typedef struct {
  double *total, *gram, *alone; /* inner products of lanes, of rows in their order, of entries with themselves */
  float *columns, *merged;
  int *first, *last, *next, *heads; /* slots of ids with their first entry; of that the last one; the next; first ones */
  long *place, *which; /* of a group that has entries of an id, and the groups that have some */
  long units, most, filled, slots; /* columns that there is room for, and that are filled */
  int shift;
} Share;

INLINE long rounded(long number, long unit) { return (number + unit - 1) / unit * unit; }

INLINE void swap(double *a, double *b) {
  double kept_a = *a;
  *a = *b, *b = kept_a;
}

static int wide; /* whether vectors have sixteen lanes, not eight */
static long lanes;

static Share share_of(const Table *m, int thread);

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define NAME(name) name##_wide
#define WIDE 1
#include "vectors.h"
#include "rows.h"
#include "eigh.h"
#include "rounding.h"
#undef NAME
#undef WIDE
#undef LANES
#undef vec
#undef dvec
#undef half
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAME(name) name##_narrow
#define WIDE 0
#include "vectors.h"
#include "rows.h"
#include "eigh.h"
#include "rounding.h"
#undef NAME
#undef WIDE
#undef LANES
#undef vec
#undef dvec
#undef half
#pragma GCC pop_options
static int has_wide(void) { return __builtin_cpu_supports("x86-64-v4") != 0; }
static int is_usable(void) { return __builtin_cpu_supports("x86-64-v3") != 0; }
#define CHOOSE(name) (wide ? name##_wide : name##_narrow)
#else
#define NAME(name) name##_narrow
#define WIDE 0
#include "vectors.h"
#include "rows.h"
#include "eigh.h"
#include "rounding.h"
#undef NAME
#undef WIDE
#undef LANES
#undef vec
#undef dvec
#undef half
static int has_wide(void) { return 0; }
static int is_usable(void) { return 1; }
#define CHOOSE(name) name##_narrow
#endif

/* Threads. */

typedef void (*Work)(void *what, int thread, int threads);
typedef struct {
  Work work;
  void *what;
  int threads, next;
} Team;
static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);

static void work_in_team(void *given) {
  Team *team = given;
  int share;
  while ((share = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->threads)
    team->work(team->what, share, team->threads);
}

/* Do all shares of some work, at the same time if there are threads for it. */
static void share_out(Work work, void *what, int threads) {
  Team team = {work, what, threads, 0};
  if (threads > 1 && gomp_parallel) gomp_parallel(work_in_team, &team, threads, 0);
  else work_in_team(&team);
}

/* Memory that a thread keeps from call to call: without it, every call would take it from the system anew. */

static __thread struct {
  float *memory;
  long numbers;
} kept;

/* Return memory for so many numbers, or NULL with a Python error. */
static float *reserve(long numbers) {
  if (numbers > kept.numbers) {
    free(kept.memory);
    kept.memory = aligned_alloc(64, rounded(numbers, 16) * sizeof(float));
    kept.numbers = kept.memory ? numbers : 0;
  }
  return kept.memory ? kept.memory : (float *)PyErr_NoMemory();
}

static void give_back_much(void) {
  if (kept.numbers * (long)sizeof(float) > KEPT) {
    free(kept.memory);
    kept.memory = NULL, kept.numbers = 0;
  }
}

/* Products. */

static void lay_out(void *m, int thread, int threads) { CHOOSE(lay_out)(m, thread, threads); }
static void by_rows(void *m, int thread, int threads) { CHOOSE(by_rows)(m, thread, threads); }
static void between(void *m, int thread, int threads) { CHOOSE(between)(m, thread, threads); }
static void of_tasks(void *m, int thread, int threads) { CHOOSE(of_tasks)(m, thread, threads); }
static void mix(void *m, int thread, int threads) { CHOOSE(mix)(m, thread, threads); }
static void combine(void *m, int thread, int threads) { CHOOSE(combine)(m, thread, threads); }

/* Add inner products of lanes, total [units * lanes][units * lanes], of which those of a unit with later ones are known, to
   those of rows in their order, gram [N, N]. */
static void add_lanes(const double *total, const Cut *cut, long K, double *gram) {
  long n = cut->groups, N = n * K, size = cut->vectors * K * lanes;
  for (long u = 0; u < cut->vectors * K; u++)
    for (long lane = 0; lane < lanes; lane++) {
      long g = u / K * lanes + lane, row = g * K + u % K;
      if (g >= n) break;
      for (long v = u; v < cut->vectors * K; v++) {
        const double *from = total + (u * lanes + lane) * size + v * lanes;
        long h = v / K * lanes, last = n - h < lanes ? n - h : lanes, column = h * K + v % K;
        for (long other = 0; other < last; other++, column += K) {
          gram[row * N + column] += from[other];
          if (u < v) gram[column * N + row] += from[other];
        }
      }
    }
}

static PyObject *product_gram(PyObject *self, PyObject *args) {
  Product m = {0};
  long experts, places, rows;
  int threads;
  if (!PyArg_ParseTuple(args, "lllllllllillli", &m.x, &m.d, &m.cut.bounds, &m.cut.groups, &m.cut.largest, &experts,
                        &places, &m.inputs, &m.outputs, &m.ones, &m.tasks, &rows, &m.gram, &threads))
    return NULL;
  long K = m.tasks, n = m.cut.groups, P = m.cut.largest;
  m.cut.vectors = (n + lanes - 1) / lanes;
  m.d_step = experts * places * m.outputs;
  m.I = m.inputs + m.ones;
  m.O = rounded(m.outputs, 4);
  long units = m.cut.vectors * K, in_lanes = m.cut.vectors * P * lanes, total = units * units * lanes * lanes;
  /* Many places of a group: so few outputs that their cotangents stay in the cache while all inputs go past. */
  int many = SPAN * in_lanes * K > NEAR && m.I >= 16 * CHOOSE(ROW_I);
  m.span = !many ? SPAN : 16 * in_lanes * K <= NEAR ? 16 : 8;
  m.tile = SPAN * CHOOSE(ROW_I) * units * lanes + m.span * in_lanes * K;
  if (m.tile < m.I * lanes) m.tile = m.I * lanes; /* a place while it is laid out */
  m.work = rounded(m.inputs * lanes + rounded(P, lanes) * places + (P * K * 4 + n * K * K) * lanes, 16);
  float *memory = reserve(rows ? in_lanes * rounded(m.I, CHOOSE(ROW_I)) + threads * (m.tile + 2 * total) : threads * m.work);
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  memset(m.gram, 0, n * K * n * K * sizeof(double));
  m.totals = (double *)memory, m.tiles = memory + 2 * threads * total, m.works = memory;
  m.x_lanes = m.tiles + threads * m.tile;
  if (rows) memset(m.totals, 0, threads * total * sizeof(double));
  for (long expert = 0; expert < experts; expert++, m.x += places * m.inputs, m.d += places * m.outputs)
    if (rows) share_out(lay_out, &m, threads), share_out(by_rows, &m, threads);
    else share_out(between, &m, threads);
  for (int thread = 0; rows && thread < threads; thread++) add_lanes(m.totals + thread * total, &m.cut, K, m.gram);
  Py_END_ALLOW_THREADS;
  give_back_much();
  Py_RETURN_NONE;
}

/* Copy activations, with a one after the last if there is room in `step` columns, panel after panel of as many columns as
   are multiplied at a time: rows of all of them would lie too far apart for the processor to fetch them ahead. */
static void pad_activations(Combined *m) {
  long most = CHOOSE(ADD_V) * lanes;
  float *to = m->padded;
  for (long first = 0; first < m->step; first += most) {
    long width = m->step - first < most ? m->step - first : most;
    long real = m->inputs - first < width ? m->inputs - first : width;
    if (real < 0) real = 0;
    for (long p = 0; p < m->places; p++, to += width) {
      memcpy(to, m->x + p * m->inputs + first, real * sizeof(float));
      for (long i = real; i < width; i++) to[i] = m->ones && first + i == m->inputs;
    }
  }
}

static PyObject *task_gram(PyObject *self, PyObject *args) {
  Combined m = {0};
  long experts;
  double *gram;
  int threads;
  if (!PyArg_ParseTuple(args, "llllllllli", &m.x, &m.d, &experts, &m.places, &m.inputs, &m.outputs, &m.ones, &m.tasks,
                        &gram, &threads))
    return NULL;
  long K = m.tasks, panels = K * m.places * 8 + K * 8 * 48;
  m.d_step = experts * m.places * m.outputs;
  m.step = rounded(m.inputs + m.ones, 16);
  float *memory = reserve(threads * (2 * K * K + panels) + m.places * m.step);
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  m.totals = (double *)memory, m.panels = memory + threads * 2 * K * K, m.padded = m.panels + threads * panels;
  memset(m.totals, 0, threads * K * K * sizeof(double));
  for (long expert = 0; expert < experts; expert++, m.x += m.places * m.inputs, m.d += m.places * m.outputs) {
    pad_activations(&m);
    share_out(of_tasks, &m, threads);
  }
  for (long i = 0; i < K; i++)
    for (long j = i; j < K; j++) {
      double value = 0;
      for (int thread = 0; thread < threads; thread++) value += m.totals[(thread * K + i) * K + j];
      gram[i * K + j] = gram[j * K + i] = value;
    }
  Py_END_ALLOW_THREADS;
  give_back_much();
  Py_RETURN_NONE;
}

static PyObject *product_sum(PyObject *self, PyObject *args) {
  Combined m = {0};
  long experts;
  int threads;
  if (!PyArg_ParseTuple(args, "llllllllllli", &m.x, &m.d, &m.weights, &m.group, &experts, &m.places, &m.inputs,
                        &m.outputs, &m.tasks, &m.weight, &m.bias, &threads))
    return NULL;
  m.d_step = experts * m.places * m.outputs;
  m.ones = m.bias != NULL, m.step = rounded(m.inputs + m.ones, 16);
  float *memory = reserve(m.places * (m.step + rounded(m.outputs, 8)));
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  m.padded = memory, m.panels = memory + m.places * m.step;
  for (long expert = 0; expert < experts; expert++) {
    pad_activations(&m);
    share_out(mix, &m, threads);
    share_out(combine, &m, threads);
    m.x += m.places * m.inputs, m.d += m.places * m.outputs, m.weight += m.outputs * m.inputs;
  }
  Py_END_ALLOW_THREADS;
  give_back_much();
  Py_RETURN_NONE;
}

static PyObject *product_with(PyObject *self, PyObject *args) {
  Combined m = {0};
  long experts, count, groups;
  const double *weights;
  double *products;
  if (!PyArg_ParseTuple(args, "lllllllllllll", &m.x, &m.d, &m.group, &experts, &m.places, &m.inputs, &m.outputs, &m.ones,
                        &m.tasks, &groups, &count, &weights, &products))
    return NULL;
  m.d_step = experts * m.places * m.outputs;
  double *memory = (double *)reserve(2 * (m.inputs + m.ones + 1) * rounded(m.outputs, 8));
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  long N = groups * m.tasks;
  memset(products, 0, count * N * sizeof(double));
  for (long expert = 0; expert < experts; expert++, m.x += m.places * m.inputs, m.d += m.places * m.outputs)
    for (long s = 0; s < count; s++) CHOOSE(product_with)(&m, weights + s * N, memory, products + s * N);
  Py_END_ALLOW_THREADS;
  give_back_much();
  Py_RETURN_NONE;
}

/* Tables. */

static void table(void *m, int thread, int threads) { CHOOSE(table)(m, thread, threads); }

/* Return the parts of a thread's memory, those that have to be zero set so. */
static Share share_of(const Table *m, int thread) {
  long E = m->entries, K = m->tasks, n = m->groups, units = (n + lanes - 1) / lanes * K, N = n * K;
  Share own = {.units = units, .most = COLUMNS + m->width, .slots = 2, .shift = 63};
  while (own.slots < 2 * E) own.slots *= 2, own.shift--;
  own.total = (double *)(m->memory + thread * m->share);
  own.gram = own.total + units * units * lanes * lanes;
  own.alone = own.gram + N * N;
  own.place = (long *)(own.alone + n * K * K * 8);
  own.which = own.place + n;
  own.merged = (float *)(own.which + n);
  own.columns = own.merged + n * K * m->width;
  own.first = (int *)(own.columns + own.most * units * lanes);
  own.last = own.first + own.slots, own.next = own.last + E, own.heads = own.next + E;
  memset(own.total, 0, (units * units * lanes * lanes + N * N + n * K * K * 8) * sizeof(double));
  memset(own.place, -1, n * sizeof(long));
  return own;
}

static PyObject *table_gram(PyObject *self, PyObject *args) {
  Table m = {0};
  double *gram;
  int threads;
  if (!PyArg_ParseTuple(args, "lllllllli", &m.ids, &m.group, &m.values, &m.entries, &m.tasks, &m.width, &m.groups, &gram,
                        &threads))
    return NULL;
  long K = m.tasks, n = m.groups, N = n * K, units = (n + lanes - 1) / lanes * K, slots = 2;
  while (slots < 2 * m.entries) slots *= 2;
  m.share = 2 * (units * units * lanes * lanes + N * N + n * K * K * 8 + 2 * n) + n * K * m.width;
  m.share = rounded(m.share + (COLUMNS + m.width) * units * lanes + slots + 3 * m.entries, 16);
  if (!(m.memory = reserve(threads * m.share))) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  share_out(table, &m, threads);
  Cut cut = {NULL, n, 0, (n + lanes - 1) / lanes};
  memset(gram, 0, N * N * sizeof(double));
  for (int thread = 0; thread < threads; thread++) {
    const double *total = (double *)(m.memory + thread * m.share), *own = total + units * units * lanes * lanes;
    add_lanes(total, &cut, K, gram);
    for (long at = 0; at < N * N; at++) gram[at] += own[at];
  }
  Py_END_ALLOW_THREADS;
  give_back_much();
  Py_RETURN_NONE;
}

static PyObject *table_sum(PyObject *self, PyObject *args) {
  Table m = {0};
  const float *weights;
  float *grad;
  long step;
  if (!PyArg_ParseTuple(args, "lllllllll", &m.ids, &m.group, &m.values, &step, &m.entries, &m.tasks, &m.width, &weights,
                        &grad))
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  CHOOSE(table_sum)(&m, weights, step, grad);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

/* Eigendecomposition, and what rounding did to it. */

static PyObject *eigh(PyObject *self, PyObject *args) {
  const double *matrix;
  double *values, *vectors;
  long n;
  int converged;
  if (!PyArg_ParseTuple(args, "llll", &matrix, &n, &values, &vectors)) return NULL;
  double *memory = (double *)reserve(2 * (3 * n + 7) * rounded(n, 8));
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  converged = CHOOSE(eigh)(matrix, n, values, vectors, memory);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(converged);
}

static PyObject *weigh(PyObject *self, PyObject *args) {
  Weighing w;
  long found;
  if (!PyArg_ParseTuple(args, "lllllidddddddddllllllll", &w.matrix, &w.averages, &w.n, &w.tasks, &w.rank, &w.agreement,
                        &w.error, &w.row_error, &w.balanced, &w.eigh_error, &w.told_apart, &w.doubt, &w.zero,
                        &w.of_update, &w.of_sum, &w.rows, &w.projections, &w.values, &w.noise, &w.along, &w.spread,
                        &w.turn, &w.vectors))
    return NULL;
  double *memory = (double *)reserve(2 * (3 * w.n + 7) * (rounded(w.n, 8) + w.tasks));
  if (!memory) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  found = CHOOSE(weigh)(&w, memory);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(found);
}

static PyObject *rounding(PyObject *self, PyObject *args) {
  const double *matrix, *values, *vectors, *averages;
  double error, least, *noise, *along, *turn, *spread;
  long n, K;
  if (!PyArg_ParseTuple(args, "llllllddllll", &matrix, &values, &vectors, &averages, &n, &K, &error, &least, &noise,
                        &along, &turn, &spread))
    return NULL;
  double *memory = (double *)reserve(2 * K * rounded(n, 8));
  if (!memory) return NULL;
  CHOOSE(rounding)(matrix, values, vectors, averages, n, K, error, least, noise, along, turn, spread, memory);
  Py_RETURN_NONE;
}

static PyObject *moved(PyObject *self, PyObject *args) {
  const double *turn, *lengths, *kept, *factors, *along;
  long n, K;
  if (!PyArg_ParseTuple(args, "lllllll", &turn, &lengths, &kept, &factors, &along, &n, &K)) return NULL;
  double *memory = (double *)reserve(2 * K * n);
  if (!memory) return NULL;
  return PyFloat_FromDouble(CHOOSE(moved)(turn, lengths, kept, factors, along, n, K, memory));
}

static PyObject *find_threads(PyObject *self, PyObject *args) {
  gomp_parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  return PyBool_FromLong(gomp_parallel != NULL);
}

/* Use the widest vectors that there are, or narrower ones as on older processors. Returns whether they are wide now. */
static PyObject *use_wide(PyObject *self, PyObject *wanted) {
  wide = has_wide() && PyObject_IsTrue(wanted) == 1, lanes = wide ? 16 : 8;
  return PyBool_FromLong(wide);
}

static PyMethodDef METHODS[] = {
    {"product_gram", product_gram, METH_VARARGS, NULL},
    {"task_gram", task_gram, METH_VARARGS, NULL},
    {"product_sum", product_sum, METH_VARARGS, NULL},
    {"product_with", product_with, METH_VARARGS, NULL},
    {"table_gram", table_gram, METH_VARARGS, NULL},
    {"table_sum", table_sum, METH_VARARGS, NULL},
    {"eigh", eigh, METH_VARARGS, NULL},
    {"weigh", weigh, METH_VARARGS, NULL},
    {"rounding", rounding, METH_VARARGS, NULL},
    {"moved", moved, METH_VARARGS, NULL},
    {"use_wide", use_wide, METH_O, NULL},
    {"find_threads", find_threads, METH_NOARGS, NULL},
    {NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "compiled", NULL, 0, METHODS};

PyMODINIT_FUNC PyInit_compiled(void) {
  if (!is_usable()) {
    PyErr_SetString(PyExc_ImportError, "the kernels of gdod are written for processors with AVX2");
    return NULL;
  }
  wide = has_wide(), lanes = wide ? 16 : 8;
  return PyModule_Create(&MODULE);
}
