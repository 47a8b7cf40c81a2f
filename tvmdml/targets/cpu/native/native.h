/* Launches of CPU kernels on NumPy arrays, with no Python code between the check and the kernel.

   This is the fast path of a call, for arrays of exactly a form that was seen before. For everything else it answers "no", and
   the Python code takes over: that code has the rules and the error messages. */
#ifndef TVMDML_NATIVE_H
#define TVMDML_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>

#include "pool.h"

#if PY_VERSION_HEX < 0x030B0000
#define PyFloat_Pack2(value, to, little) _PyFloat_Pack2((value), (unsigned char *)(to), (little))
#endif

enum {
    MOST_ARRAYS = 1024, /* per kernel */
    MOST_TEMPORARIES = 32,
    MOST_SCALARS = 256,
    MOST_RANK = 64, /* NumPy's own limit */
    MOST_SYMBOL = 256,
};

/* -- NumPy's arrays ------------------------------------------------------------------------------------------------

   The first fields of `PyArrayObject_fields` and `PyArray_Descr`. Every extension that was built against NumPy has these offsets
   in its machine code, so they do not change, and `inspect` verifies them. Reading them costs nothing, while the buffer protocol
   costs 100 ns per array. */

typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar;
    char kind, letter, byte_order, flags;
    int number; /* NumPy's type number */
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

/* NumPy's type numbers. Those of integers are in turn signed and unsigned. */
enum { NUMPY_INT8 = 1, NUMPY_ULONGLONG = 10, NUMPY_FLOAT = 11, NUMPY_DOUBLE = 12, NUMPY_HALF = 23 };

extern PyObject *ndarray;   /* numpy.ndarray; NULL until `connect` */
extern PyObject *data_type; /* numpy.dtype */
extern PyObject *empty;     /* numpy.empty */
extern PyObject *no_sizes;  /* () */
extern PyObject *to_error;  /* (kind, message, backtrace) -> an exception */

/* NumPy's PyArray_NewFromDescr, which takes over a reference to the data type; NULL if this NumPy has another C interface. A call of
   `empty` takes about 100 ns more. */
typedef PyObject *new_array_t(PyObject *type, PyObject *dtype, int rank, const Py_ssize_t *sizes, const Py_ssize_t *strides,
                              void *data, int flags, PyObject *owner);
extern new_array_t *new_array;

static inline bool is_array(PyObject *object) {
    return (PyObject *)Py_TYPE(object) == ndarray;
}

/* -- TVM's arguments -----------------------------------------------------------------------------------------------

   `DLTensor` of dlpack.h. Kernels read only the address: everything else was already checked. */

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor_t;

enum { KIND_INTEGER = 1, KIND_TENSOR = 7, DEVICE_CPU = 1 };

static inline void put_tensor(ffi_any *argument, tensor_t *tensor, void *data) {
    static int64_t one = 1;
    *tensor = (tensor_t){.data = data, .device_type = DEVICE_CPU, .rank = 1, .type_code = 1, .type_bits = 8, .type_lanes = 1,
                         .shape = &one, .strides = &one};
    *argument = (ffi_any){.kind = KIND_TENSOR, .value.pointer = tensor};
}

/* `TVMFFIErrorCell`. It follows an object header of 24 bytes. */
typedef struct {
    const char *data;
    size_t size;
} bytes_t;

typedef struct {
    uint64_t references;
    int32_t type, zero;
    void (*deleter)(void *, int);
    bytes_t kind, message, backtrace;
    void *rest[4];
} ffi_error;

/* Raise the error that TVM holds for this thread, after a call that returned this status. */
void raise_error(int status);

/* -- The types ----------------------------------------------------------------------------------------------------- */

/* Kernel: a kernel of a library that this extension loaded. */
typedef struct {
    PyObject_HEAD
    PyObject *library; /* keeps the function alive */
    ffi_call *call;
} kernel_t;

/* Launch: a kernel with all its arguments except the arrays. */
typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    PyObject *owner; /* keeps the function alive */
    ffi_call *call;
    void *function; /* what it is called with: a function of TVM's runtime, or NULL */
    size_t scratch_bytes; /* total of all temporaries, each rounded up to ALIGNMENT */
    int temporary_count, scalar_count;
    size_t offsets[MOST_TEMPORARIES];
    ffi_any scalars[];
} launch_t;

/* The form that one array must have. */
typedef struct {
    bool absent; /* an optional tensor: `None` is given */
    bool output;
    Py_ssize_t same; /* the output that an input must share its memory with, by its position; -1 if there is none */
    int type; /* NumPy's type number */
    int rank;
    Py_ssize_t span; /* bytes from the start of the first element to the end of the last */
    Py_ssize_t sizes[]; /* shape, then strides */
} form_t;

/* Fit: a launch for arrays of one fixed form. */
typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    launch_t *launch;
    form_t *forms[];
} fit_t;

extern PyTypeObject bound_type, bound_sequence_type, fit_type, kernel_type, launch_type, library_type, plans_type, sequence_type;

/* Call these once, before the first launch. */
int scratch_init(void);
void library_init(void);

/* At least `bytes` bytes of scratch memory, aligned; NULL if out of memory. It is valid until this thread takes some again. Return it
   with `return_scratch`. */
void *take_scratch(size_t bytes);
void return_scratch(void *memory, size_t bytes);

/* Launch on arrays that were already checked. Returns 0, or -1 with an error set. */
int launch_arrays(const launch_t *launch, PyObject *const *arrays, Py_ssize_t count);

/* Check that arrays have a launch's form, and that no output shares memory with another array, except with the inputs that it must
   share its memory with. Returns the number of arrays that the kernel takes, and stores those in `present`; returns -1 if the check
   fails. Where a form has `same`, the object there must be an array. */
Py_ssize_t fit_arrays(const fit_t *fit, PyObject *const *objects, Py_ssize_t count, PyObject **present);

#endif
