/* Plans: the fast path of function calls. */
#include "native.h"

#include <string.h>

/* -- Plans: how earlier function calls were launched ------------------------------------------------------------------

   A cache: each call has two places, chosen by its hash, and a new plan replaces an older one. Python keeps a complete cache. */

typedef struct {
    uint64_t hash;
    PyObject *describe, *device, *attributes;
    fit_t *fit;        /* inputs, then outputs if the caller gives arrays for them */
    Py_ssize_t inputs; /* how many of the fit's forms are inputs */
    PyObject *results; /* ((shape, dtype), …) to allocate; NULL if the caller gives arrays */
} plan_t;

enum { PLACES = 4096 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    plan_t *plans[PLACES];
} plans_t;

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t mix_array(uint64_t hash, PyObject *object) {
    if (object == Py_None) return mix(hash, 1);
    const array_t *array = (const array_t *)object;
    hash = mix(hash, (uint64_t)array->dtype->number << 8 ^ (uint64_t)array->rank);
    for (int d = 0; d < array->rank; d++) {
        hash = mix(hash, (uint64_t)array->shape[d] << 32 ^ (uint64_t)array->strides[d]);
    }
    return hash;
}

/* The parts of a call: (describe, device, attributes, inputs, out), as Python gives them. */
typedef struct {
    PyObject *describe, *device, *attributes;
    PyObject *arrays[MOST_ARRAYS]; /* inputs, then the arrays given for outputs */
    Py_ssize_t inputs, count;
    uint64_t hash;
} call_t;

/* Read a call. Returns false, with no error set, if this fast path does not handle it. */
static bool read_call(PyObject *const *parts, call_t *call) {
    PyObject *inputs = parts[3], *out = parts[4];
    *call = (call_t){.describe = parts[0], .device = parts[1], .attributes = parts[2]};
    if (!PyTuple_CheckExact(call->attributes) || !PyTuple_CheckExact(inputs)) return false;
    call->inputs = PyTuple_GET_SIZE(inputs);
    Py_ssize_t outs = out == Py_None ? 0 : PyTuple_CheckExact(out) ? PyTuple_GET_SIZE(out) : 1;
    call->count = call->inputs + outs;
    if (call->count > MOST_ARRAYS || (out != Py_None && outs == 0)) return false;
    uint64_t hash = mix((uint64_t)(uintptr_t)call->describe, (uint64_t)call->count);
    for (Py_ssize_t i = 0; i < call->count; i++) {
        PyObject *array = i < call->inputs              ? PyTuple_GET_ITEM(inputs, i)
                          : PyTuple_CheckExact(out) ? PyTuple_GET_ITEM(out, i - call->inputs)
                                                        : out;
        if (!is_array(array) && (array != Py_None || i >= call->inputs)) return false;
        call->arrays[i] = array;
        hash = mix_array(hash, array);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call->attributes); i++) {
        Py_hash_t own = PyObject_Hash(PyTuple_GET_ITEM(call->attributes, i));
        if (own == -1 && PyErr_Occurred()) {
            /* Python reports what is wrong when it describes the call; an interrupt is not the call's fault. */
            if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
            return false;
        }
        hash = mix(hash, (uint64_t)own);
    }
    call->hash = hash;
    return true;
}

/* Whether two values mean the same to a descriptor. Equality is not enough: 1 equals True, and 0.0 equals -0.0. Runs no Python
   code, because that could free the plan under inspection. */
static bool same_value(PyObject *one, PyObject *other) {
    if (one == other) return true;
    if (Py_TYPE(one) != Py_TYPE(other)) return false;
    if (PyLong_CheckExact(one) || PyUnicode_CheckExact(one) || PyBytes_CheckExact(one)) {
        return PyObject_RichCompareBool(one, other, Py_EQ) == 1;
    }
    if (PyFloat_CheckExact(one)) {
        double values[] = {PyFloat_AS_DOUBLE(one), PyFloat_AS_DOUBLE(other)};
        return memcmp(&values[0], &values[1], sizeof(double)) == 0;
    }
    if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) != PyTuple_GET_SIZE(other)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(one); i++) {
        if (!same_value(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(other, i))) return false;
    }
    return true;
}

/* Whether `same_value` can ever be true for another object of the same value, or the object is a singleton. */
static bool is_comparable(PyObject *value) {
    if (PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            if (!is_comparable(PyTuple_GET_ITEM(value, i))) return false;
        }
        return true;
    }
    return value == Py_None || PyLong_Check(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) ||
           PyBytes_CheckExact(value) || PyType_Check(value);
}

static bool same_call(const plan_t *plan, const call_t *call) {
    if (plan == NULL || plan->hash != call->hash || plan->describe != call->describe) return false;
    if (plan->inputs != call->inputs || Py_SIZE(plan->fit) != call->count) return false;
    return same_value(plan->device, call->device) && same_value(plan->attributes, call->attributes);
}

/* A tuple of new arrays of the given ((shape, dtype), …). */
static PyObject *allocate(PyObject *wanted) {
    Py_ssize_t count = PyTuple_GET_SIZE(wanted);
    PyObject *results = PyTuple_New(count);
    for (Py_ssize_t i = 0; results != NULL && i < count; i++) {
        PyObject *result = PyObject_Vectorcall(empty, &PyTuple_GET_ITEM(PyTuple_GET_ITEM(wanted, i), 0), 2, NULL);
        if (result == NULL) {
            Py_CLEAR(results);
        } else {
            PyTuple_SET_ITEM(results, i, result);
        }
    }
    return results;
}

static PyObject *run_plan(const plan_t *plan, const call_t *call) {
    PyObject *present[MOST_ARRAYS], *results;
    Py_ssize_t found = fit_arrays(plan->fit, call->arrays, call->count, present);
    if (found < 0) Py_RETURN_NONE;
    launch_t *launch = (launch_t *)Py_NewRef(plan->fit->launch); /* from here on the plan may be freed at any time */
    if (plan->results == NULL) {
        results = PyTuple_New(call->count - call->inputs);
        for (Py_ssize_t i = call->inputs; results != NULL && i < call->count; i++) {
            PyTuple_SET_ITEM(results, i - call->inputs, Py_NewRef(call->arrays[i]));
        }
    } else {
        PyObject *wanted = Py_NewRef(plan->results);
        results = allocate(wanted);
        Py_DECREF(wanted);
        for (Py_ssize_t i = 0; results != NULL && i < PyTuple_GET_SIZE(results); i++) {
            present[found++] = PyTuple_GET_ITEM(results, i);
        }
    }
    if (results != NULL && launch_arrays(launch, present, found) < 0) Py_CLEAR(results);
    Py_DECREF(launch);
    return results;
}

static PyObject *plans_call(PyObject *object, PyObject *const *parts, size_t flags, PyObject *names) {
    plans_t *self = (plans_t *)object;
    call_t call;
    if (PyVectorcall_NARGS(flags) != 5 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a call must be (describe, device, attributes, inputs, out)");
        return NULL;
    }
    if (!read_call(parts, &call)) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    for (uint64_t way = 0; way < 2; way++) {
        const plan_t *plan = self->plans[(call.hash ^ way) % PLACES];
        if (same_call(plan, &call)) return run_plan(plan, &call);
    }
    Py_RETURN_NONE;
}

static void free_plan(plan_t *plan) {
    if (plan == NULL) return;
    Py_XDECREF(plan->describe);
    Py_XDECREF(plan->device);
    Py_XDECREF(plan->attributes);
    Py_XDECREF(plan->fit);
    Py_XDECREF(plan->results);
    PyMem_Free(plan);
}

/* The forms of a call's arrays as a Fit, or NULL with an error set. */
static fit_t *fit_for(launch_t *launch, const call_t *call) {
    PyObject *forms = PyTuple_New(call->count);
    for (Py_ssize_t i = 0; forms != NULL && i < call->count; i++) {
        PyObject *form = call->arrays[i], *shape, *strides;
        if (form == Py_None) {
            Py_INCREF(form);
        } else {
            shape = PyObject_GetAttrString(form, "shape");
            strides = PyObject_GetAttrString(form, "strides");
            form = shape == NULL || strides == NULL ? NULL
                                                    : Py_BuildValue("(OOOO)", ((array_t *)form)->dtype, shape, strides,
                                                                    i < call->inputs ? Py_False : Py_True);
            Py_XDECREF(shape);
            Py_XDECREF(strides);
        }
        if (form == NULL) {
            Py_CLEAR(forms);
            break;
        }
        PyTuple_SET_ITEM(forms, i, form);
    }
    if (forms == NULL) return NULL;
    PyObject *fit = PyObject_CallFunctionObjArgs((PyObject *)&fit_type, launch, forms, NULL);
    Py_DECREF(forms);
    return (fit_t *)fit;
}

static PyObject *plans_add(PyObject *object, PyObject *const *parts, Py_ssize_t count) {
    plans_t *self = (plans_t *)object;
    call_t call;
    if (count != 7 || !PyObject_TypeCheck(parts[5], &launch_type) || !PyTuple_CheckExact(parts[6])) {
        PyErr_SetString(PyExc_TypeError, "a plan must be (describe, device, attributes, inputs, out, launch, results)");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts[6]); i++) {
        PyObject *result = PyTuple_GET_ITEM(parts[6], i);
        if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != 2) {
            PyErr_SetString(PyExc_TypeError, "results must be ((shape, dtype), …)");
            return NULL;
        }
    }
    if (!read_call(parts, &call)) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (!is_comparable(call.device) || !is_comparable(call.attributes)) Py_RETURN_NONE;
    if (call.count + PyTuple_GET_SIZE(parts[6]) > MOST_ARRAYS) Py_RETURN_NONE;
    plan_t *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL) return PyErr_NoMemory();
    plan->fit = fit_for((launch_t *)parts[5], &call);
    if (plan->fit == NULL) {
        free_plan(plan);
        return NULL;
    }
    plan->hash = call.hash;
    plan->describe = Py_NewRef(call.describe);
    plan->device = Py_NewRef(call.device);
    plan->attributes = Py_NewRef(call.attributes);
    plan->inputs = call.inputs;
    plan->results = call.count > call.inputs ? NULL : Py_NewRef(parts[6]);
    plan_t **first = &self->plans[call.hash % PLACES], **second = &self->plans[(call.hash ^ 1) % PLACES];
    plan_t *gone = *second;
    *second = *first;
    *first = plan;
    free_plan(gone); /* last: freeing its objects may run any code */
    Py_RETURN_NONE;
}

static PyObject *plans_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(names)) {
    plans_t *self = (plans_t *)type->tp_alloc(type, 0);
    if (self != NULL) self->vectorcall = plans_call;
    return (PyObject *)self;
}

static void plans_dealloc(PyObject *object) {
    for (int i = 0; i < PLACES; i++) free_plan(((plans_t *)object)->plans[i]);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef plans_methods[] = {
    {"add", (PyCFunction)(void (*)(void))plans_add, METH_FASTCALL, PyDoc_STR("Remember how calls of this form are launched.")},
    {0},
};

PyTypeObject plans_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Plans",
    .tp_doc = PyDoc_STR("A cache of calls. It runs a call of a known form, and returns None for any other."),
    .tp_basicsize = sizeof(plans_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = plans_new,
    .tp_dealloc = plans_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(plans_t, vectorcall),
    .tp_methods = plans_methods,
};
