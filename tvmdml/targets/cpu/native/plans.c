/* Plans: the fast path of function calls. */
#include "native.h"

#include <string.h>

/* -- Plans: how earlier function calls were launched ------------------------------------------------------------------

   A cache: each call has two places, chosen by its hash, and a new plan replaces an older one. Python keeps a complete cache. */

typedef struct {
    uint64_t hash;
    PyObject *describe, *device, *attributes;
    fit_t *fit;        /* inputs, then outputs if the caller gives arrays for them */
    PyObject *numbers; /* for each input the data type that a Python number is converted to, or None; NULL if there are no numbers */
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

static PyObject *const *items(PyObject *tuple) {
    return ((PyTupleObject *)tuple)->ob_item;
}

/* Python's own numbers, without subclasses other than bool. */
static bool is_number(PyObject *object) {
    return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object);
}

static uint64_t mix_array(uint64_t hash, PyObject *object) {
    if (object == Py_None) return mix(hash, 1);
    if (!is_array(object)) return mix(hash, (uint64_t)(uintptr_t)Py_TYPE(object)); /* of a number the value may differ */
    const array_t *array = (const array_t *)object;
    hash = mix(hash, (uint64_t)array->dtype->number << 8 ^ (uint64_t)array->rank);
    for (int d = 0; d < array->rank; d++) {
        hash = mix(hash, (uint64_t)array->shape[d] << 32 ^ (uint64_t)array->strides[d]);
    }
    return hash;
}

/* The parts of a call. */
typedef struct {
    PyObject *describe, *device, *out;
    PyObject *const *attributes, *const *given; /* the values of its attributes, and its inputs */
    Py_ssize_t attribute_count, inputs, count;
    uint64_t hash;
    PyObject *arrays[MOST_ARRAYS]; /* inputs, then the arrays given for outputs: `count`; the rest is not set, which would take time */
} call_t;

/* The array for an output that starts at the same address as an input: the kernel then works in place. -1 if there is none. */
static Py_ssize_t shares(const call_t *call, Py_ssize_t input) {
    if (!is_array(call->arrays[input])) return -1;
    const char *data = ((array_t *)call->arrays[input])->data;
    for (Py_ssize_t i = call->inputs; i < call->count; i++) {
        if (((array_t *)call->arrays[i])->data == data) return i;
    }
    return -1;
}

/* Complete a call whose parts are set. Returns false, with no error set, if this fast path does not handle it. */
static bool read_parts(call_t *call) {
    PyObject *out = call->out;
    Py_ssize_t outs = out == Py_None ? 0 : PyTuple_CheckExact(out) ? PyTuple_GET_SIZE(out) : 1;
    call->count = call->inputs + outs;
    if (call->count > MOST_ARRAYS || (out != Py_None && outs == 0)) return false;
    uint64_t hash = mix((uint64_t)(uintptr_t)call->describe, (uint64_t)call->count);
    for (Py_ssize_t i = 0; i < call->count; i++) {
        PyObject *array = i < call->inputs          ? call->given[i]
                          : PyTuple_CheckExact(out) ? PyTuple_GET_ITEM(out, i - call->inputs)
                                                    : out;
        if (!is_array(array) && (i >= call->inputs || (array != Py_None && !is_number(array)))) return false;
        call->arrays[i] = array;
        hash = mix_array(hash, array);
    }
    for (Py_ssize_t i = 0; i < call->inputs; i++) {
        Py_ssize_t same = shares(call, i);
        if (same >= 0) hash = mix(hash, (uint64_t)(i * MOST_ARRAYS + same));
    }
    for (Py_ssize_t i = 0; i < call->attribute_count; i++) {
        if (call->attributes[i] == Py_None) {
            hash = mix(hash, 1);
            continue;
        }
        Py_hash_t own = PyObject_Hash(call->attributes[i]);
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

/* The same of a call as (describe, device, attributes, inputs, out). */
static bool read_call(PyObject *const *parts, call_t *call) {
    if (!PyTuple_CheckExact(parts[2]) || !PyTuple_CheckExact(parts[3])) return false;
    call->describe = parts[0], call->device = parts[1], call->out = parts[4];
    call->attributes = items(parts[2]), call->attribute_count = PyTuple_GET_SIZE(parts[2]);
    call->given = items(parts[3]), call->inputs = PyTuple_GET_SIZE(parts[3]);
    return read_parts(call);
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
    if (!same_value(plan->device, call->device) || PyTuple_GET_SIZE(plan->attributes) != call->attribute_count) return false;
    for (Py_ssize_t i = 0; i < call->attribute_count; i++) {
        if (!same_value(PyTuple_GET_ITEM(plan->attributes, i), call->attributes[i])) return false;
    }
    return true;
}

static PyObject *new_empty(PyObject *shape, PyObject *dtype) {
    Py_ssize_t sizes[MOST_RANK], rank = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : MOST_RANK + 1;
    if (new_array == NULL || rank > MOST_RANK || !PyObject_TypeCheck(dtype, (PyTypeObject *)data_type)) {
        return PyObject_Vectorcall(empty, (PyObject *[]){shape, dtype}, 2, NULL);
    }
    for (Py_ssize_t d = 0; d < rank; d++) {
        sizes[d] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, d));
        if (sizes[d] == -1 && PyErr_Occurred()) return NULL;
    }
    return new_array(ndarray, Py_NewRef(dtype), (int)rank, sizes, NULL, NULL, 0, NULL);
}

/* The outputs of a call: the caller's arrays, or new ones of the given ((shape, dtype), …). Returns how many there are; -1 with an
   error set, and then there are none. */
static Py_ssize_t take_outputs(const call_t *call, PyObject *wanted, PyObject **outputs) {
    Py_ssize_t count = wanted == NULL ? call->count - call->inputs : PyTuple_GET_SIZE(wanted);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = wanted == NULL ? NULL : PyTuple_GET_ITEM(wanted, i);
        outputs[i] = one == NULL ? Py_NewRef(call->arrays[call->inputs + i])
                                 : new_empty(PyTuple_GET_ITEM(one, 0), PyTuple_GET_ITEM(one, 1));
        if (outputs[i] == NULL) {
            while (i-- > 0) Py_DECREF(outputs[i]);
            return -1;
        }
    }
    return count;
}

/* Store a number as an element of NumPy's type number. Returns false, with no error set, if Python must convert or refuse it. */
static bool put_number(PyObject *number, int type, void *to) {
    if (type == NUMPY_FLOAT || type == NUMPY_DOUBLE || type == NUMPY_HALF) {
        double value = PyFloat_AsDouble(number);
        if (value == -1 && PyErr_Occurred()) {
            PyErr_Clear(); /* an integer beyond the range of double */
            return false;
        }
        if (type == NUMPY_FLOAT) {
            *(float *)to = (float)value;
        } else if (type == NUMPY_DOUBLE) {
            *(double *)to = value;
        } else if (PyFloat_Pack2(value, to, PY_LITTLE_ENDIAN) < 0) {
            PyErr_Clear(); /* beyond the range of float16 */
            return false;
        }
        return true;
    }
    if (type < NUMPY_INT8 || type > NUMPY_ULONGLONG || !PyLong_Check(number)) return false;
    static const uint8_t widths[] = {[1] = 1, 1, 2, 2, 4, 4, sizeof(long), sizeof(long), 8, 8};
    bool is_signed = type % 2 == 1;
    int overflow, bits = 8 * widths[type];
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow != 0 || (!is_signed && value < 0)) return false;
    int used = is_signed ? bits - 1 : bits;
    if (used < 63 && (value >> used) != (value < 0 ? -1 : 0)) return false;
    memcpy(to, &value, widths[type]); /* little-endian: the first bytes are the low ones */
    return true;
}

/* Replace a call's numbers by arrays without dimensions, and store these in `made`. Returns 1; 0 if this fast path does not handle
   a number; -1 with an error set. */
static int convert_numbers(PyObject *numbers, call_t *call, PyObject **made) {
    for (Py_ssize_t i = 0; i < call->inputs; i++) {
        PyObject *dtype = PyTuple_GET_ITEM(numbers, i);
        if (dtype == Py_None) continue;
        if (!is_number(call->arrays[i])) return 0;
        PyObject *array = new_empty(no_sizes, dtype);
        if (array == NULL) return -1;
        made[i] = array;
        if (!is_array(array) || !put_number(call->arrays[i], ((dtype_t *)dtype)->number, ((array_t *)array)->data)) return 0;
        call->arrays[i] = array;
    }
    return 1;
}

/* Launch on arrays of the plan's form. Returns the outputs as a tuple, or only the first one itself; NULL without an error if the
   arrays have another form. */
static PyObject *run_arrays(const fit_t *fit, PyObject *wanted, const call_t *call, bool single) {
    PyObject *present[MOST_ARRAYS], *outputs[MOST_ARRAYS], *results = NULL;
    Py_ssize_t found = fit_arrays(fit, call->arrays, call->count, present);
    if (found < 0) return NULL;
    Py_ssize_t count = take_outputs(call, wanted, outputs);
    if (count < 0) return NULL;
    single = single && count > 0;
    if (wanted != NULL) {
        for (Py_ssize_t i = 0; i < count; i++) present[found++] = outputs[i];
    }
    if (launch_arrays(fit->launch, present, found) == 0) {
        results = single ? Py_NewRef(outputs[0]) : PyTuple_New(count);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (results == NULL || single) {
            Py_DECREF(outputs[i]);
        } else {
            PyTuple_SET_ITEM(results, i, outputs[i]);
        }
    }
    return results;
}

static PyObject *run_plan(const plan_t *plan, call_t *call, bool single) {
    /* The plan may be freed as soon as an object is made. */
    fit_t *fit = (fit_t *)Py_NewRef(plan->fit);
    PyObject *wanted = Py_XNewRef(plan->results), *numbers = Py_XNewRef(plan->numbers);
    PyObject *results = NULL, *made[MOST_ARRAYS];
    if (numbers == NULL) {
        results = run_arrays(fit, wanted, call, single);
    } else {
        memset(made, 0, call->inputs * sizeof *made);
        if (convert_numbers(numbers, call, made) > 0) results = run_arrays(fit, wanted, call, single);
        for (Py_ssize_t i = 0; i < call->inputs; i++) Py_XDECREF(made[i]);
        Py_DECREF(numbers);
    }
    Py_XDECREF(wanted);
    Py_DECREF(fit);
    return results != NULL || PyErr_Occurred() ? results : Py_NewRef(Py_None);
}

/* Run a call that was read, if it is known. Returns its results, or None; NULL with an error set. */
static PyObject *run_call(const plans_t *self, bool is_read, call_t *call, bool single) {
    if (!is_read) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    for (uint64_t way = 0; way < 2; way++) {
        const plan_t *plan = self->plans[(call->hash ^ way) % PLACES];
        if (same_call(plan, call)) return run_plan(plan, call, single);
    }
    Py_RETURN_NONE;
}

static PyObject *plans_call(PyObject *object, PyObject *const *parts, size_t flags, PyObject *names) {
    call_t call;
    if (PyVectorcall_NARGS(flags) != 5 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a call must be (describe, device, attributes, inputs, out)");
        return NULL;
    }
    return run_call((plans_t *)object, read_call(parts, &call), &call, false);
}

/* The same of a call as (describe, device, out, number of inputs, inputs…, attributes…): without tuples, which take time. */
static PyObject *plans_one(PyObject *object, PyObject *const *parts, Py_ssize_t count) {
    call_t call;
    Py_ssize_t inputs = count < 4 || !PyLong_CheckExact(parts[3]) ? -1 : PyLong_AsSsize_t(parts[3]);
    if (inputs < 0 || inputs > count - 4) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a call must be (describe, device, out, count, inputs…, attributes…)");
        return NULL;
    }
    call.describe = parts[0], call.device = parts[1], call.out = parts[2];
    call.given = parts + 4, call.inputs = inputs;
    call.attributes = parts + 4 + inputs, call.attribute_count = count - 4 - inputs;
    for (Py_ssize_t i = 0; i < call.attribute_count; i++) {
        if (PyList_CheckExact(call.attributes[i])) Py_RETURN_NONE; /* Python makes a tuple of it */
    }
    return run_call((plans_t *)object, read_parts(&call), &call, true);
}

static void free_plan(plan_t *plan) {
    if (plan == NULL) return;
    Py_XDECREF(plan->describe);
    Py_XDECREF(plan->device);
    Py_XDECREF(plan->attributes);
    Py_XDECREF(plan->fit);
    Py_XDECREF(plan->numbers);
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
    fit_t *fit = (fit_t *)PyObject_CallFunctionObjArgs((PyObject *)&fit_type, launch, forms, NULL);
    Py_DECREF(forms);
    for (Py_ssize_t i = 0; fit != NULL && i < call->inputs; i++) fit->forms[i]->same = shares(call, i);
    return fit;
}

/* Put arrays without dimensions in the place of a call's numbers, as Python converted them, and remember their data types. Returns
   false, with an error set or not, if there is another array for a number. */
static bool take_numbers(plan_t *plan, call_t *call, PyObject *arrays) {
    bool some = false;
    PyObject *numbers = PyTuple_New(call->inputs);
    for (Py_ssize_t i = 0; numbers != NULL && i < call->inputs; i++) {
        PyObject *dtype = Py_None, *given = call->arrays[i];
        if (given != Py_None && !is_array(given)) {
            if (arrays == NULL || PyTuple_GET_SIZE(arrays) != call->inputs) break;
            given = PyTuple_GET_ITEM(arrays, i);
            if (!is_array(given) || ((array_t *)given)->rank != 0) break;
            call->arrays[i] = given;
            dtype = (PyObject *)((array_t *)given)->dtype;
            some = true;
        }
        PyTuple_SET_ITEM(numbers, i, Py_NewRef(dtype));
    }
    bool complete = numbers != NULL && (call->inputs == 0 || PyTuple_GET_ITEM(numbers, call->inputs - 1) != NULL);
    if (complete && some) plan->numbers = Py_NewRef(numbers);
    Py_XDECREF(numbers);
    return complete;
}

static PyObject *plans_add(PyObject *object, PyObject *const *parts, Py_ssize_t count) {
    plans_t *self = (plans_t *)object;
    call_t call;
    if ((count != 7 && (count != 8 || !PyTuple_CheckExact(parts[7]))) || !PyObject_TypeCheck(parts[5], &launch_type) ||
        !PyTuple_CheckExact(parts[6])) {
        PyErr_SetString(PyExc_TypeError, "a plan must be (describe, device, attributes, inputs, out, launch, results[, arrays])");
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
    if (!is_comparable(call.device) || !is_comparable(parts[2])) Py_RETURN_NONE;
    if (call.count + PyTuple_GET_SIZE(parts[6]) > MOST_ARRAYS) Py_RETURN_NONE;
    plan_t *plan = PyMem_Calloc(1, sizeof *plan);
    if (plan == NULL) return PyErr_NoMemory();
    if (!take_numbers(plan, &call, count == 8 ? parts[7] : NULL)) {
        free_plan(plan);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    plan->fit = fit_for((launch_t *)parts[5], &call);
    if (plan->fit == NULL) {
        free_plan(plan);
        return NULL;
    }
    plan->hash = call.hash;
    plan->describe = Py_NewRef(call.describe);
    plan->device = Py_NewRef(call.device);
    plan->attributes = Py_NewRef(parts[2]);
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
    {"one", (PyCFunction)(void (*)(void))plans_one, METH_FASTCALL, PyDoc_STR("Run a call, and return its first result.")},
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
