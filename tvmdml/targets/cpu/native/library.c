/* Library, Kernel: compiled kernels, loaded by the system's loader. A process that only runs kernels never loads TVM's runtime, whose
   import takes 20 ms. */
#include "native.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

static const char POOL[] = "__TVMBackendParallelLaunch";
static const char PREFIX[] = "__tvm_ffi_";

/* -- What the pool and launches need, where TVM's runtime is not loaded --------------------------------------------- */

enum { ERROR_TYPE = 67, MANY = 1 << 30 };

/* The one error there is: kernels that are loaded here have no messages of their own. It is an object of the runtime's form, with
   references that do not end: the runtime may be loaded while a thread holds it. */
static ffi_error failed = {.references = ((uint64_t)MANY << 32) + MANY, .type = ERROR_TYPE};
static _Thread_local bool raised;

static void own_move(void **error) {
    *error = raised ? &failed : NULL;
    raised = false;
}

static void own_set(void *error) {
    raised = error != NULL;
}

static void own_say(const char *kind, const char *text) {
    failed.kind = (bytes_t){kind, strlen(kind)};
    failed.message = (bytes_t){text, strlen(text)};
    failed.backtrace = (bytes_t){"", 0};
    raised = true;
}

static int own_release(void *Py_UNUSED(error)) {
    return 0;
}

void library_init(void) {
    ffi = (ffi_functions){NULL, own_move, own_set, own_say, own_release};
}

/* -- The types ------------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    void *handle;
    int file; /* the descriptor of the library's file, which is closed with it; -1 for none */
    struct stat about;
} library_t;

static PyObject *library_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    static char *keywords[] = {"path", "file", NULL};
    const char *path;
    int file = -1;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "s|i:Library", keywords, &path, &file)) return NULL;
    library_t *self = (library_t *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->file = -1;
    self->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (self->handle == NULL) {
        const char *problem = dlerror();
        PyErr_SetString(PyExc_OSError, problem != NULL ? problem : "it cannot be loaded");
        Py_DECREF(self);
        return NULL;
    }
    if (file >= 0 && fstat(file, &self->about) == 0) self->file = file;
    void **pool = dlsym(self->handle, POOL);
    if (pool != NULL) *pool = (void *)(uintptr_t)pool_launch;
    return (PyObject *)self;
}

static void library_dealloc(PyObject *object) {
    library_t *self = (library_t *)object;
    struct stat now;
    if (self->handle != NULL) dlclose(self->handle);
    /* A program may have closed it, and opened another file. */
    if (self->file >= 0 && fstat(self->file, &now) == 0 && now.st_dev == self->about.st_dev && now.st_ino == self->about.st_ino) {
        close(self->file);
    }
    Py_TYPE(object)->tp_free(object);
}

static PyObject *library_kernel(PyObject *object, PyObject *symbol) {
    const char *name = PyUnicode_AsUTF8(symbol);
    char whole[sizeof PREFIX + MOST_SYMBOL];
    if (name == NULL) return NULL;
    int length = snprintf(whole, sizeof whole, "%s%s", PREFIX, name);
    void *found = length < (int)sizeof whole ? dlsym(((library_t *)object)->handle, whole) : NULL;
    if (found == NULL) {
        PyErr_Format(PyExc_AttributeError, "the library has no kernel %.200s", name);
        return NULL;
    }
    kernel_t *kernel = PyObject_New(kernel_t, &kernel_type);
    if (kernel == NULL) return NULL;
    kernel->library = Py_NewRef(object);
    kernel->call = (ffi_call *)(uintptr_t)found;
    return (PyObject *)kernel;
}

static PyObject *kernel_address(PyObject *object, void *Py_UNUSED(none)) {
    return PyLong_FromVoidPtr((void *)(uintptr_t)((kernel_t *)object)->call);
}

static void kernel_dealloc(PyObject *object) {
    Py_DECREF(((kernel_t *)object)->library);
    PyObject_Free(object);
}

static PyMethodDef library_methods[] = {
    {"kernel", library_kernel, METH_O, PyDoc_STR("A kernel of the library, by its symbol.")},
    {0},
};

static PyGetSetDef kernel_fields[] = {
    {"address", kernel_address, NULL, PyDoc_STR("The address of its function."), NULL},
    {0},
};

PyTypeObject library_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Library",
    .tp_doc = PyDoc_STR("A shared library of kernels, which run on the pool. It is unloaded with the last of its kernels."),
    .tp_basicsize = sizeof(library_t),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = library_new,
    .tp_dealloc = library_dealloc,
    .tp_methods = library_methods,
};

PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Kernel",
    .tp_doc = PyDoc_STR("A kernel of a library."),
    .tp_basicsize = sizeof(kernel_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = kernel_dealloc,
    .tp_getset = kernel_fields,
};
