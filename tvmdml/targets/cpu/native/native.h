/* Launches of CPU kernels on NumPy arrays, with no Python between the check and the kernel.

   What is here is the quick way of a call, for arrays of exactly the form that was seen before. It answers "no" to everything
   else, and Python looks closer: it has the rules, and the words for what is wrong. */
#ifndef TVMDML_NATIVE_H
#define TVMDML_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>

#include "pool.h"

enum {
    MOST_ARRAYS = 64, /* of one kernel */
    MOST_TEMPORARIES = 32,
    MOST_SCALARS = 256,
    MOST_RANK = 64, /* NumPy's own */
};

/* -- NumPy's arrays ------------------------------------------------------------------------------------------------

   The beginnings of `PyArrayObject_fields` and `PyArray_Descr`. Every extension that was ever built against NumPy has these offsets in its machine
   code, so they stay, and `inspect` is there to make sure. Reading them costs nothing, where the buffer protocol costs 100 ns an array. */

typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar;
    char kind, letter, byte_order, flags;
    int number; /* of the type */
} dtype_t;

typedef struct {
    PyObject_HEAD
    char *data;
    int rank;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    dtype_t *dtype;
    int flags;
} array_t;

enum { ALIGNED = 0x100, WRITEABLE = 0x400 }; /* NPY_ARRAY_ALIGNED, NPY_ARRAY_WRITEABLE */

extern PyObject *ndarray;  /* numpy.ndarray; NULL until `connect` */
extern PyObject *empty;    /* numpy.empty */
extern PyObject *to_error; /* (kind, message, backtrace) -> an exception */

static inline bool is_array(PyObject *object) {
    return (PyObject *)Py_TYPE(object) == ndarray;
}

/* -- The types ----------------------------------------------------------------------------------------------------- */

/* Launch: a kernel and all it takes but its arrays. */
typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    PyObject *owner; /* keeps the function alive */
    void *function;
    size_t scratch_bytes; /* of all temporaries, each rounded up to ALIGNMENT */
    int temporary_count, scalar_count;
    size_t offsets[MOST_TEMPORARIES];
    ffi_any scalars[];
} launch_t;

/* What one array must be. */
typedef struct {
    bool absent; /* an optional tensor: `None` is given */
    bool output;
    int type; /* NumPy's number */
    int rank;
    Py_ssize_t span; /* bytes from the first element's beginning to the last one's end */
    Py_ssize_t sizes[]; /* shape, then strides */
} form_t;

/* Fit: a launch for arrays of one exact form. */
typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    launch_t *launch;
    form_t *forms[];
} fit_t;

extern PyTypeObject launch_type, bound_type, fit_type, plans_type;

/* Once, before the first launch. */
int scratch_init(void);

/* Launch on arrays that were checked: 0, or -1 with an error set. */
int launch_arrays(const launch_t *launch, PyObject *const *arrays, Py_ssize_t count);

/* Whether arrays have a launch's form, and no output shares memory with another array: how many there are, or -1. Puts those that
   are present in a row. */
Py_ssize_t fit_arrays(const fit_t *fit, PyObject *const *objects, Py_ssize_t count, PyObject **present);

#endif
