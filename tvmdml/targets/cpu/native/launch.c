/* Launch, Bound, Fit: launch a kernel on arrays. */
#include "native.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64,
    KEPT_BYTES = 16 << 20, /* scratch memory that a thread keeps for its next launch */
    /* Up to this many elements, work takes less time than to release the interpreter to other threads and wait to get it back. */
    BRIEF_ELEMENTS = 1024,
};

/* -- TVM's arguments ----------------------------------------------------------------------------------------------- */

enum { ERROR_IS_PYTHONS = -2 };

void raise_error(int status) {
    if (status == ERROR_IS_PYTHONS && PyErr_Occurred()) return;
    ffi_error *error = NULL;
    ffi.move_error((void **)&error);
    if (error == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel failed without an error message");
        return;
    }
    PyObject *exception = PyObject_CallFunction(to_error, "s#s#s#", error->kind.data, (Py_ssize_t)error->kind.size,
                                                error->message.data, (Py_ssize_t)error->message.size, error->backtrace.data,
                                                (Py_ssize_t)error->backtrace.size);
    ffi.release(error);
    if (exception == NULL) return;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
}

/* -- Scratch memory ------------------------------------------------------------------------------------------------

   Each thread keeps the memory of its last launch, at most KEPT_BYTES and until the thread ends, so that the next launch finds it
   mapped and in the cache. Within one thread launches do not nest, because kernels do not call Python. */

typedef struct {
    void *memory;
    size_t bytes;
} scratch_t;

static _Thread_local scratch_t *scratch;
static pthread_key_t scratch_key;

static void free_scratch(void *kept) {
    scratch = NULL;
    free(((scratch_t *)kept)->memory);
    free(kept);
}

int scratch_init(void) {
    return pthread_key_create(&scratch_key, free_scratch);
}

void *take_scratch(size_t bytes) {
    void *memory = NULL;
    if (scratch != NULL && scratch->bytes >= bytes) return scratch->memory;
    if (bytes > KEPT_BYTES) return posix_memalign(&memory, ALIGNMENT, bytes) == 0 ? memory : NULL;
    if (scratch == NULL) {
        scratch = calloc(1, sizeof *scratch);
        if (scratch == NULL) return NULL;
        if (pthread_setspecific(scratch_key, scratch) != 0) {
            free(scratch);
            scratch = NULL;
            return NULL;
        }
    }
    free(scratch->memory);
    *scratch = (scratch_t){NULL, 0};
    if (posix_memalign(&memory, ALIGNMENT, bytes) != 0) return NULL;
    *scratch = (scratch_t){memory, bytes};
    return memory;
}

void return_scratch(void *memory, size_t bytes) {
    if (bytes > KEPT_BYTES) free(memory);
}

/* -- Launch: a kernel with all its arguments except the arrays ------------------------------------------------------ */

/* Launch on these addresses. With `alone`, the interpreter is released meanwhile, and the caller keeps the memory alive. */
static int launch_on(const launch_t *launch, char *const *data, int count, bool alone) {
    int places = count + launch->temporary_count + 1; /* a variable-length array has an element at least */
    tensor_t tensors[places];
    ffi_any arguments[places + launch->scalar_count];
    ffi_any result = {0};
    char *memory = NULL;
    int used = 0, status;
    for (; used < count; used++) put_tensor(&arguments[used], &tensors[used], data[used]);
    if (launch->temporary_count > 0) {
        memory = take_scratch(launch->scratch_bytes);
        if (memory == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (int i = 0; i < launch->temporary_count; i++, used++) {
            put_tensor(&arguments[used], &tensors[used], memory + launch->offsets[i]);
        }
    }
    memcpy(&arguments[used], launch->scalars, launch->scalar_count * sizeof(ffi_any));
    used += launch->scalar_count;
    if (alone) {
        PyThreadState *thread = PyEval_SaveThread();
        status = launch->call(launch->function, arguments, used, &result);
        if (memory != NULL) return_scratch(memory, launch->scratch_bytes); /* before the next line, which may end a thread */
        PyEval_RestoreThread(thread);
    } else {
        status = launch->call(launch->function, arguments, used, &result);
        if (memory != NULL) return_scratch(memory, launch->scratch_bytes);
    }
    if (status == 0) return 0;
    raise_error(status);
    return -1;
}

/* Whether the interpreter should be released to other threads while the kernel works on these arrays. */
static bool is_long(PyObject *const *arrays, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        const array_t *array = (const array_t *)arrays[i];
        Py_ssize_t elements = 1;
        for (int d = 0; d < array->rank; d++) {
            elements *= array->shape[d];
            if (elements > BRIEF_ELEMENTS) return true;
        }
    }
    return false;
}

int launch_arrays(const launch_t *launch, PyObject *const *arrays, Py_ssize_t count) {
    char *data[MOST_ARRAYS];
    for (Py_ssize_t i = 0; i < count; i++) data[i] = ((array_t *)arrays[i])->data;
    bool alone = is_long(arrays, count);
    if (alone) { /* another thread could drop or resize arrays that only the caller's frame refers to */
        for (Py_ssize_t i = 0; i < count; i++) Py_INCREF(arrays[i]);
    }
    int status = launch_on(launch, data, (int)count, alone);
    if (alone) {
        for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(arrays[i]);
    }
    return status;
}

static int check_arrays(PyObject *const *arrays, Py_ssize_t count) {
    if (count > MOST_ARRAYS) {
        PyErr_Format(PyExc_TypeError, "%zd arrays given; at most %d are allowed", count, MOST_ARRAYS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_array(arrays[i])) {
            PyErr_Format(PyExc_TypeError, "a kernel is launched on NumPy arrays, not %.200s", Py_TYPE(arrays[i])->tp_name);
            return -1;
        }
    }
    return 0;
}

static PyObject *launch_call(PyObject *self, PyObject *const *arrays, size_t flags, PyObject *names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names != NULL && PyTuple_GET_SIZE(names) != 0) {
        PyErr_SetString(PyExc_TypeError, "arrays are positional arguments, without keywords");
        return NULL;
    }
    if (check_arrays(arrays, count) < 0 || launch_arrays((launch_t *)self, arrays, count) < 0) return NULL;
    Py_RETURN_NONE;
}

/* Find what is called: a kernel itself, or a function of TVM's runtime through that. */
static int find_function(launch_t *self) {
    if (Py_IS_TYPE(self->owner, &kernel_type)) {
        self->call = ((kernel_t *)self->owner)->call;
        return 0;
    }
    if (ffi.call == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "join() must be called first");
        return -1;
    }
    PyObject *handle = PyObject_CallMethod(self->owner, "__chandle__", NULL);
    if (handle == NULL) return -1;
    self->call = ffi.call;
    self->function = PyLong_AsVoidPtr(handle);
    Py_DECREF(handle);
    return self->function == NULL && PyErr_Occurred() ? -1 : 0;
}

static PyObject *launch_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    static char *keywords[] = {"kernel", "scalars", "temporaries", NULL};
    PyObject *owner, *scalars, *temporaries;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OO!O!:Launch", keywords, &owner, &PyTuple_Type, &scalars, &PyTuple_Type,
                                     &temporaries)) {
        return NULL;
    }
    if (ndarray == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "connect() must be called first");
        return NULL;
    }
    Py_ssize_t scalar_count = PyTuple_GET_SIZE(scalars), temporary_count = PyTuple_GET_SIZE(temporaries);
    if (scalar_count > MOST_SCALARS || temporary_count > MOST_TEMPORARIES) {
        PyErr_Format(PyExc_ValueError, "at most %d scalars and %d temporaries are allowed", MOST_SCALARS, MOST_TEMPORARIES);
        return NULL;
    }
    launch_t *self = (launch_t *)type->tp_alloc(type, scalar_count);
    if (self == NULL) return NULL;
    self->vectorcall = launch_call;
    self->owner = Py_NewRef(owner);
    if (find_function(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->scalar_count = (int)scalar_count;
    self->temporary_count = (int)temporary_count;
    for (Py_ssize_t i = 0; i < scalar_count; i++) {
        self->scalars[i] = (ffi_any){.kind = KIND_INTEGER, .value.integer = PyLong_AsLongLong(PyTuple_GET_ITEM(scalars, i))};
    }
    for (Py_ssize_t i = 0; i < temporary_count && !PyErr_Occurred(); i++) {
        size_t bytes = PyLong_AsSize_t(PyTuple_GET_ITEM(temporaries, i));
        if (bytes > PY_SSIZE_T_MAX - ALIGNMENT - self->scratch_bytes && !PyErr_Occurred()) PyErr_NoMemory();
        self->offsets[i] = self->scratch_bytes;
        self->scratch_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (temporary_count > 0 && self->scratch_bytes == 0) self->scratch_bytes = ALIGNMENT;
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void launch_dealloc(PyObject *self) {
    Py_XDECREF(((launch_t *)self)->owner);
    Py_TYPE(self)->tp_free(self);
}

/* -- Bound: a launch together with its arrays ----------------------------------------------------------------------- */

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    launch_t *launch;
    bool is_long;
    PyObject *arrays[];
} bound_t;

static PyObject *bound_call(PyObject *object, PyObject *const *Py_UNUSED(arguments), size_t flags, PyObject *names) {
    bound_t *self = (bound_t *)object;
    if (PyVectorcall_NARGS(flags) != 0 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a bound operator takes no arguments: its arrays are already bound");
        return NULL;
    }
    char *data[MOST_ARRAYS];
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) data[i] = ((array_t *)self->arrays[i])->data;
    if (self->is_long) Py_INCREF(self);
    int status = launch_on(self->launch, data, (int)Py_SIZE(self), self->is_long);
    if (self->is_long) Py_DECREF(self);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *launch_bind(PyObject *self, PyObject *const *arrays, Py_ssize_t count) {
    if (check_arrays(arrays, count) < 0) return NULL;
    bound_t *bound = PyObject_NewVar(bound_t, &bound_type, count);
    if (bound == NULL) return NULL;
    bound->vectorcall = bound_call;
    bound->launch = (launch_t *)Py_NewRef(self);
    bound->is_long = is_long(arrays, count);
    for (Py_ssize_t i = 0; i < count; i++) bound->arrays[i] = Py_NewRef(arrays[i]);
    return (PyObject *)bound;
}

static void bound_dealloc(PyObject *object) {
    bound_t *self = (bound_t *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) Py_DECREF(self->arrays[i]);
    Py_DECREF(self->launch);
    PyObject_Free(self);
}

/* -- Fit: a launch for arrays of one fixed form ---------------------------------------------------------------------- */

static Py_ssize_t whole(PyObject *object, const char *name) {
    PyObject *value = PyErr_Occurred() ? NULL : PyObject_GetAttrString(object, name);
    Py_ssize_t number = value == NULL ? -1 : PyLong_AsSsize_t(value);
    Py_XDECREF(value);
    return number;
}

/* A form given as Python's tuple (dtype, shape, strides, output). Strides are in bytes, and not negative. */
static form_t *make_form(PyObject *object) {
    PyObject *dtype, *shape, *strides;
    int output;
    if (!PyArg_ParseTuple(object, "OO!O!p", &dtype, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &output)) return NULL;
    Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    Py_ssize_t type = whole(dtype, "num"), span = whole(dtype, "itemsize");
    bool native = whole(dtype, "isnative") == 1;
    if (PyErr_Occurred()) return NULL;
    if (!native || rank > MOST_RANK || rank != PyTuple_GET_SIZE(strides)) {
        PyErr_SetString(PyExc_ValueError, "the type has another byte order, or shape and strides differ in length");
        return NULL;
    }
    form_t *form = PyMem_Malloc(sizeof *form + 2 * rank * sizeof(Py_ssize_t));
    if (form == NULL) return (form_t *)PyErr_NoMemory();
    *form = (form_t){.type = (int)type, .rank = (int)rank, .output = output, .same = -1, .span = span};
    for (Py_ssize_t d = 0; d < rank; d++) {
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d)), stride = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, d));
        if (PyErr_Occurred() || size < 1 || stride < 0) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an array must have at least one element and no negative stride");
            PyMem_Free(form);
            return NULL;
        }
        form->sizes[d] = size;
        form->sizes[rank + d] = stride;
        form->span += (size - 1) * stride;
    }
    return form;
}

/* Whether a type is a plain number in the processor's byte order. For such types NumPy's type number says everything. */
static bool is_native(const dtype_t *dtype) {
    return (dtype->byte_order == '=' || dtype->byte_order == '|') && memchr("biuf", dtype->kind, 4) != NULL;
}

static bool has_form(PyObject *object, const form_t *form) {
    if (form->absent) return object == Py_None;
    if (!is_array(object)) return false;
    const array_t *array = (const array_t *)object;
    int needed = form->output ? ALIGNED | WRITEABLE : ALIGNED;
    size_t bytes = form->rank * sizeof(Py_ssize_t);
    return is_native(array->dtype) && array->dtype->number == form->type && array->rank == form->rank && (array->flags & needed) == needed &&
           (bytes == 0 || /* NumPy then stores no shape and strides */
            (memcmp(array->shape, form->sizes, bytes) == 0 && memcmp(array->strides, form->sizes + form->rank, bytes) == 0));
}

Py_ssize_t fit_arrays(const fit_t *fit, PyObject *const *objects, Py_ssize_t count, PyObject **present) {
    const form_t *forms[MOST_ARRAYS];
    Py_ssize_t found = 0;
    if (count > Py_SIZE(fit)) return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        const form_t *form = fit->forms[i];
        if (!has_form(objects[i], form)) return -1;
        if (form->absent) continue;
        const char *begin = ((array_t *)objects[i])->data;
        if (form->same >= 0) { /* it is no argument of the kernel, which works in place */
            if (begin != ((array_t *)objects[form->same])->data) return -1;
            continue;
        }
        for (Py_ssize_t j = 0; j < found; j++) {
            const char *other = ((array_t *)present[j])->data;
            if ((form->output || forms[j]->output) && begin < other + forms[j]->span && other < begin + form->span) return -1;
        }
        forms[found] = form;
        present[found++] = objects[i];
    }
    return found;
}

static PyObject *fit_call(PyObject *object, PyObject *const *arrays, size_t flags, PyObject *names) {
    fit_t *self = (fit_t *)object;
    PyObject *present[MOST_ARRAYS];
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count != Py_SIZE(self) || (names != NULL && PyTuple_GET_SIZE(names) != 0)) Py_RETURN_FALSE;
    count = fit_arrays(self, arrays, count, present);
    if (count < 0) Py_RETURN_FALSE;
    if (launch_arrays(self->launch, present, count) < 0) return NULL;
    Py_RETURN_TRUE;
}

static PyObject *fit_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    PyObject *launch, *forms;
    if (names != NULL && PyDict_GET_SIZE(names) != 0) {
        PyErr_SetString(PyExc_TypeError, "Fit takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O!O!:Fit", &launch_type, &launch, &PyTuple_Type, &forms)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(forms);
    if (count > MOST_ARRAYS) {
        PyErr_Format(PyExc_ValueError, "at most %d arrays are allowed", MOST_ARRAYS);
        return NULL;
    }
    fit_t *self = (fit_t *)type->tp_alloc(type, count);
    if (self == NULL) return NULL;
    self->vectorcall = fit_call;
    self->launch = (launch_t *)Py_NewRef(launch);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *form = PyTuple_GET_ITEM(forms, i);
        self->forms[i] = form == Py_None ? PyMem_Calloc(1, sizeof(form_t)) : make_form(form);
        if (form == Py_None && self->forms[i] != NULL) self->forms[i]->absent = true, self->forms[i]->same = -1;
        if (self->forms[i] == NULL) {
            if (!PyErr_Occurred()) PyErr_NoMemory();
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void fit_dealloc(PyObject *object) {
    fit_t *self = (fit_t *)object;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        PyMem_Free(self->forms[i]);
    }
    Py_XDECREF(self->launch);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *launch_fit(PyObject *self, PyObject *forms) {
    return PyObject_CallFunctionObjArgs((PyObject *)&fit_type, self, forms, NULL);
}

static PyMethodDef launch_methods[] = {
    {"fit", launch_fit, METH_O, PyDoc_STR("A launch on arrays that have these forms.")},
    {"bind", (PyCFunction)(void (*)(void))launch_bind, METH_FASTCALL, PyDoc_STR("A launch on these arrays, for repeated calls.")},
    {0},
};

PyTypeObject launch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Launch",
    .tp_doc = PyDoc_STR("A kernel with its integers and temporaries, called with checked arrays."),
    .tp_basicsize = sizeof(launch_t),
    .tp_itemsize = sizeof(ffi_any),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = launch_new,
    .tp_dealloc = launch_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(launch_t, vectorcall),
    .tp_methods = launch_methods,
};

PyTypeObject bound_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Bound",
    .tp_doc = PyDoc_STR("A launch together with its arrays."),
    .tp_basicsize = sizeof(bound_t),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = bound_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(bound_t, vectorcall),
};

PyTypeObject fit_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Fit",
    .tp_doc = PyDoc_STR("A launch for arrays of one form: launches if the given arrays have it, and returns whether."),
    .tp_basicsize = sizeof(fit_t),
    .tp_itemsize = sizeof(form_t *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = fit_new,
    .tp_dealloc = fit_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(fit_t, vectorcall),
};
