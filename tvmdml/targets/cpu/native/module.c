/* `tvmdml.targets.cpu._native`: the module. */
#include "native.h"

PyObject *ndarray, *data_type, *empty, *no_sizes, *to_error;
new_array_t *new_array;

/* connect(ndarray, dtype, empty, to_error, new_array): sets what is known only at run time. */
static PyObject *connect(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *type, *dtype, *function, *error;
    unsigned long long makes;
    if (!PyArg_ParseTuple(arguments, "OO!OOK", &type, &PyType_Type, &dtype, &function, &error, &makes)) return NULL;
    Py_XSETREF(ndarray, Py_NewRef(type));
    Py_XSETREF(data_type, Py_NewRef(dtype));
    Py_XSETREF(empty, Py_NewRef(function));
    new_array = (new_array_t *)(uintptr_t)makes;
    Py_XSETREF(to_error, Py_NewRef(error));
    Py_RETURN_NONE;
}

/* join(call, move, set, say, release): the addresses of TVM's runtime, which the process has loaded. */
static PyObject *join(PyObject *Py_UNUSED(module), PyObject *arguments) {
    unsigned long long call, move, set, say, release;
    if (!PyArg_ParseTuple(arguments, "KKKKK", &call, &move, &set, &say, &release)) return NULL;
    ffi.call = (ffi_call *)(uintptr_t)call;
    ffi.move_error = (void (*)(void **))(uintptr_t)move;
    ffi.set_error = (void (*)(void *))(uintptr_t)set;
    ffi.say_error = (void (*)(const char *, const char *))(uintptr_t)say;
    ffi.release = (int (*)(void *))(uintptr_t)release;
    Py_RETURN_NONE;
}

/* inspect(array): the fields of an array as this extension reads them, to compare with NumPy's own answer. */
static PyObject *inspect(PyObject *Py_UNUSED(module), PyObject *object) {
    const array_t *array = (const array_t *)object;
    if (array->rank < 0 || array->rank > MOST_RANK) Py_RETURN_NONE; /* this is not NumPy's layout */
    PyObject *shape = PyTuple_New(array->rank), *strides = PyTuple_New(array->rank);
    for (int d = 0; shape != NULL && strides != NULL && d < array->rank; d++) {
        PyTuple_SET_ITEM(shape, d, PyLong_FromSsize_t(array->shape[d]));
        PyTuple_SET_ITEM(strides, d, PyLong_FromSsize_t(array->strides[d]));
    }
    return Py_BuildValue("KNNiccOO", (unsigned long long)(uintptr_t)array->data, shape, strides,
                         array->dtype->number, array->dtype->kind, array->dtype->byte_order, array->flags & ALIGNED ? Py_True : Py_False,
                         array->flags & WRITEABLE ? Py_True : Py_False);
}

static PyObject *set_limit(PyObject *Py_UNUSED(module), PyObject *threads) {
    long limit = PyLong_AsLong(threads);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    pool_set_limit((int)limit);
    Py_RETURN_NONE;
}

static PyObject *limit_thread(PyObject *Py_UNUSED(module), PyObject *threads) {
    long limit = PyLong_AsLong(threads);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLong(pool_limit_thread(limit > INT_MAX ? INT_MAX : (int)limit));
}

static PyObject *started(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyLong_FromLong(pool_started());
}

static PyMethodDef functions[] = {
    {"connect", connect, METH_VARARGS, PyDoc_STR("Set what is known only at run time.")},
    {"inspect", inspect, METH_O, PyDoc_STR("An array's address, shape, strides, type number, kind and byte order, aligned, writeable.")},
    {"join", join, METH_VARARGS, PyDoc_STR("Set the addresses of TVM's runtime.")},
    {"limit_thread", limit_thread, METH_O, PyDoc_STR("Set how many threads launches of this thread may use; return what it was.")},
    {"set_limit", set_limit, METH_O, PyDoc_STR("Set how many threads a launch may use.")},
    {"started", started, METH_NOARGS, PyDoc_STR("Return how many threads the pool has.")},
    {0},
};

// The number of the interface that _native.pyi declares. It grows with each change there, and so does that of threads.py.
#define NATIVE_INTERFACE 2

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = PyDoc_STR("The thread pool, and kernel launches without Python."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyTypeObject *types[] = {&bound_sequence_type, &bound_type, &fit_type, &kernel_type, &launch_type, &library_type, &plans_type,
                             &sequence_type};
    const char *names[] = {NULL, NULL, "Fit", "Kernel", "Launch", "Library", "Plans", "Sequence"};
    library_init();
    if (pool_init() != 0 || scratch_init() != 0) return PyErr_NoMemory();
    no_sizes = PyTuple_New(0);
    if (no_sizes == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    for (int i = 0; module != NULL && i < (int)(sizeof types / sizeof *types); i++) {
        if (PyType_Ready(types[i]) < 0 || (names[i] && PyModule_AddObjectRef(module, names[i], (PyObject *)types[i]) < 0)) {
            Py_CLEAR(module);
        }
    }
    PyObject *pool = PyLong_FromVoidPtr((void *)(uintptr_t)pool_launch);
    if (module != NULL && (pool == NULL || PyModule_AddObjectRef(module, "LAUNCH", pool) < 0)) Py_CLEAR(module);
    Py_XDECREF(pool);
    if (module != NULL && PyModule_AddIntConstant(module, "INTERFACE", NATIVE_INTERFACE) < 0) Py_CLEAR(module);
    return module;
}
