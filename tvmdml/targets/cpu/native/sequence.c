/* Sequence: launches that run in turn by one call, on arrays whose places are known as (slot, offset). */
#include "native.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BRIEF_NS = 10 * 1000,          /* a run that lasts less does not release the interpreter to other threads */
    LOOK_NS = 20 * 1000 * 1000,    /* how often a long run lets Python handle signals */
    ON_STACK = 1024,               /* up to this many slots have their addresses on the stack */
    MOST_SLOTS = 1 << 20,
    MOST_CONDITIONS = 64,
};

/* Where an array of a step begins. */
typedef struct {
    Py_ssize_t slot;
    size_t offset;
} place_t;

typedef struct {
    launch_t *launch;
    const place_t *places; /* of its arrays, then of its conditions */
    int count;
    int conditions;
    uint64_t wanted; /* a bit for each condition: whether its byte must be another one than 0 */
} step_t;

/* It does not change, so that threads may run it at the same time. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t step_count, slots;
    step_t *steps;
    place_t *places;
    PyObject *owner; /* the sequence that has the places; NULL if this one has */
    size_t *farthest; /* the largest offset in each slot */
    int tensor_count, argument_count; /* the most of a step */
    size_t scratch_bytes;
    _Atomic int64_t lasted; /* nanoseconds of the last run; 0 before the first */
} sequence_t;

static int64_t read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

enum outcome { DONE, FAILED, INTERRUPTED, NO_MEMORY };

/* Let Python handle signals, which it does in the main thread only. A handler may launch kernels too, with this thread's scratch. */
static enum outcome look(PyThreadState **thread) {
    if (syscall(SYS_gettid) != getpid()) return DONE;
    if (*thread != NULL) PyEval_RestoreThread(*thread);
    int handled = PyErr_CheckSignals();
    if (*thread != NULL) *thread = PyEval_SaveThread();
    return handled < 0 ? INTERRUPTED : DONE;
}

/* Whether all conditions of a step hold. The first that does not ends the search: later ones may not have been computed. */
static bool holds(const step_t *step, char *const *bases) {
    const place_t *place = step->places + step->count;
    for (int i = 0; i < step->conditions; i++) {
        bool is = *(const unsigned char *)(bases[place[i].slot] + place[i].offset) != 0;
        if (is != (step->wanted >> i & 1)) return false;
    }
    return true;
}

/* Run all steps. With `times`, store how long each lasts, or -1 if it is left out. The caller keeps the memory and the sequence alive. */
static int run_steps(sequence_t *self, char *const *bases, int64_t *times) {
    tensor_t tensors[self->tensor_count + 1]; /* a variable-length array has an element at least */
    ffi_any arguments[self->argument_count + 1], result;
    char *memory = NULL;
    enum outcome outcome = DONE;
    int status = 0;
    int64_t before = atomic_load_explicit(&self->lasted, memory_order_relaxed);
    PyThreadState *thread = before == 0 || before > BRIEF_NS ? PyEval_SaveThread() : NULL;
    for (int i = 0; i < self->tensor_count; i++) put_tensor(&arguments[i], &tensors[i], NULL);
    int64_t looked = read_clock(CLOCK_MONOTONIC_COARSE), begun = read_clock(CLOCK_MONOTONIC);
    before = begun;
    for (Py_ssize_t number = 0; number < self->step_count; number++) {
        const step_t *step = &self->steps[number];
        const launch_t *launch = step->launch;
        int64_t time = read_clock(CLOCK_MONOTONIC_COARSE); /* 5 ns; it advances every few milliseconds */
        if (time - looked >= LOOK_NS) {
            if (memory != NULL) return_scratch(memory, self->scratch_bytes);
            memory = NULL;
            if ((outcome = look(&thread)) != DONE) break;
            looked = read_clock(CLOCK_MONOTONIC_COARSE);
            if (times != NULL) before = read_clock(CLOCK_MONOTONIC);
        }
        if (step->conditions > 0 && !holds(step, bases)) {
            if (times != NULL) times[number] = -1;
            continue;
        }
        int used = 0;
        for (; used < step->count; used++) {
            tensors[used].data = bases[step->places[used].slot] + step->places[used].offset;
            arguments[used] = (ffi_any){.kind = KIND_TENSOR, .value.pointer = &tensors[used]};
        }
        if (launch->temporary_count > 0) {
            if (memory == NULL && (memory = take_scratch(self->scratch_bytes)) == NULL) {
                outcome = NO_MEMORY;
                break;
            }
            for (int i = 0; i < launch->temporary_count; i++, used++) {
                tensors[used].data = memory + launch->offsets[i];
                arguments[used] = (ffi_any){.kind = KIND_TENSOR, .value.pointer = &tensors[used]};
            }
        }
        memcpy(&arguments[used], launch->scalars, launch->scalar_count * sizeof(ffi_any));
        result = (ffi_any){0};
        status = launch->call(launch->function, arguments, used + launch->scalar_count, &result);
        if (status != 0) {
            outcome = FAILED;
            break;
        }
        if (times != NULL) {
            int64_t after = read_clock(CLOCK_MONOTONIC);
            times[number] = after - before;
            before = after;
        }
    }
    int64_t lasted = read_clock(CLOCK_MONOTONIC) - begun;
    if (memory != NULL) return_scratch(memory, self->scratch_bytes); /* before the next line, which may end a thread */
    if (thread != NULL) PyEval_RestoreThread(thread);
    if (outcome == DONE) {
        atomic_store_explicit(&self->lasted, lasted > 0 ? lasted : 1, memory_order_relaxed);
        return 0;
    }
    if (outcome == FAILED) raise_error(status);
    if (outcome == NO_MEMORY) PyErr_NoMemory();
    return -1;
}

/* The distance from an array's first byte to the beginning of its last element. */
static size_t reach(const array_t *array) {
    size_t found = 0;
    for (int d = 0; d < array->rank; d++) {
        if (array->shape[d] == 0) return 0;
        if (array->strides[d] > 0) found += (size_t)(array->shape[d] - 1) * (size_t)array->strides[d];
    }
    return found;
}

static int check_slots(const sequence_t *self, PyObject *arrays) {
    if (PyTuple_GET_SIZE(arrays) != self->slots) {
        PyErr_Format(PyExc_ValueError, "arrays of a sequence: given %zd; allowed: %zd, one for each slot", PyTuple_GET_SIZE(arrays),
                     self->slots);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->slots; i++) {
        PyObject *array = PyTuple_GET_ITEM(arrays, i);
        if (!is_array(array)) {
            PyErr_Format(PyExc_TypeError, "arrays[%zd] of a sequence: given %.200s; allowed: NumPy's array", i,
                         Py_TYPE(array)->tp_name);
            return -1;
        }
        if (self->farthest[i] != 0 && self->farthest[i] > reach((const array_t *)array)) {
            PyErr_Format(PyExc_ValueError, "arrays[%zd] of a sequence: given an array that ends before byte %zu; allowed: a larger one", i,
                         self->farthest[i]);
            return -1;
        }
    }
    return 0;
}

static int run(sequence_t *self, PyObject *arrays, int64_t *times) {
    char *few[ON_STACK], **bases = few;
    if (check_slots(self, arrays) < 0) return -1;
    if (self->slots > ON_STACK && (bases = PyMem_Malloc(self->slots * sizeof *bases)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->slots; i++) bases[i] = ((array_t *)PyTuple_GET_ITEM(arrays, i))->data;
    Py_INCREF(self); /* other threads, and handlers of signals, may drop what only the caller's frame refers to */
    Py_INCREF(arrays);
    int status = run_steps(self, bases, times);
    Py_DECREF(arrays);
    Py_DECREF(self);
    if (bases != few) PyMem_Free(bases);
    return status;
}

static PyObject *sequence_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names) {
    if (PyVectorcall_NARGS(flags) != 1 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a sequence takes one argument: its arrays");
        return NULL;
    }
    PyObject *arrays = PySequence_Tuple(arguments[0]);
    int status = arrays == NULL ? -1 : run((sequence_t *)self, arrays, NULL);
    Py_XDECREF(arrays);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *sequence_timed(PyObject *object, PyObject *given) {
    sequence_t *self = (sequence_t *)object;
    PyObject *arrays = PySequence_Tuple(given), *found = NULL;
    if (arrays == NULL) return NULL;
    Py_ssize_t count = self->step_count;
    int64_t *times = PyMem_Calloc(count + 1, sizeof *times);
    if (times == NULL) {
        PyErr_NoMemory();
    } else if (run(self, arrays, times) == 0) {
        found = PyTuple_New(count);
        for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
            PyObject *time = PyLong_FromLongLong(times[i]);
            if (time == NULL) Py_CLEAR(found);
            else PyTuple_SET_ITEM(found, i, time);
        }
    }
    PyMem_Free(times);
    Py_DECREF(arrays);
    return found;
}

/* -- Bound: a sequence together with its arrays ---------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    sequence_t *sequence;
    PyObject *arrays;
} bound_sequence_t;

static PyObject *bound_call(PyObject *object, PyObject *const *Py_UNUSED(arguments), size_t flags, PyObject *names) {
    bound_sequence_t *self = (bound_sequence_t *)object;
    if (PyVectorcall_NARGS(flags) != 0 || (names != NULL && PyTuple_GET_SIZE(names) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a bound sequence takes no arguments: its arrays are already bound");
        return NULL;
    }
    if (run(self->sequence, self->arrays, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *sequence_bind(PyObject *self, PyObject *given) {
    PyObject *arrays = PySequence_Tuple(given);
    bound_sequence_t *bound = NULL;
    if (arrays != NULL && check_slots((sequence_t *)self, arrays) == 0) bound = PyObject_New(bound_sequence_t, &bound_sequence_type);
    if (bound == NULL) {
        Py_XDECREF(arrays);
        return NULL;
    }
    bound->vectorcall = bound_call;
    bound->sequence = (sequence_t *)Py_NewRef(self);
    bound->arrays = arrays;
    return (PyObject *)bound;
}

static void bound_dealloc(PyObject *object) {
    Py_DECREF(((bound_sequence_t *)object)->arrays);
    Py_DECREF(((bound_sequence_t *)object)->sequence);
    PyObject_Free(object);
}

/* -- Making one ------------------------------------------------------------------------------------------------------ */

static int wrong_step(Py_ssize_t number, const char *allowed) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "steps[%zd] of a sequence: allowed: %s", number, allowed);
    return -1;
}

static bool is_pair(PyObject *object) {
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 2;
}

/* Whether an object may be a step: a launch, its places, maybe sizes, which are of no use here, and what conditions must be. */
static bool is_step(PyObject *object) {
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) >= 2 && PyTuple_GET_SIZE(object) <= 4;
}

static int read_place(const sequence_t *self, PyObject *object, place_t *place) {
    if (!is_pair(object) || !PyLong_Check(PyTuple_GET_ITEM(object, 0)) || !PyLong_Check(PyTuple_GET_ITEM(object, 1))) return -1;
    place->slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, 0));
    Py_ssize_t offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, 1));
    if (PyErr_Occurred()) PyErr_Clear(), offset = -1; /* too large */
    if (place->slot < 0 || place->slot >= self->slots || offset < 0) return -1;
    place->offset = (size_t)offset;
    return 0;
}

/* Fill in a step; `places` has room for its places. Returns how many it has, or -1 with an error set. */
static Py_ssize_t read_step(sequence_t *self, Py_ssize_t number, PyObject *object, place_t *places) {
    PyObject *given = is_step(object) ? PyTuple_GET_ITEM(object, 1) : NULL;
    if (given == NULL || !Py_IS_TYPE(PyTuple_GET_ITEM(object, 0), &launch_type) || !PyTuple_Check(given)) {
        return wrong_step(number, "a launch of the extension and a tuple of places");
    }
    launch_t *launch = (launch_t *)PyTuple_GET_ITEM(object, 0);
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count > MOST_ARRAYS) return wrong_step(number, "at most 1024 places");
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_place(self, PyTuple_GET_ITEM(given, i), &places[i]) < 0) {
            return wrong_step(number, "places (slot, offset), with a slot that exists and an offset that is not negative");
        }
    }
    PyObject *wanted = PyTuple_GET_SIZE(object) == 4 ? PyTuple_GET_ITEM(object, 3) : NULL;
    Py_ssize_t conditions = 0;
    uint64_t bits = 0;
    if (wanted != NULL) {
        conditions = PyTuple_Check(wanted) ? PyTuple_GET_SIZE(wanted) : MOST_CONDITIONS + 1;
        if (conditions > MOST_CONDITIONS || conditions > count) return wrong_step(number, "at most 64 conditions, each with a place");
        for (Py_ssize_t i = 0; i < conditions; i++) bits |= (uint64_t)(PyTuple_GET_ITEM(wanted, i) == Py_True) << i;
    }
    self->steps[number] =
        (step_t){(launch_t *)Py_NewRef((PyObject *)launch), places, (int)(count - conditions), (int)conditions, bits};
    return count;
}

/* What all steps need, and the farthest place in each slot. */
static void measure(sequence_t *self) {
    memset(self->farthest, 0, self->slots * sizeof *self->farthest);
    self->tensor_count = self->argument_count = 0;
    self->scratch_bytes = 0;
    for (Py_ssize_t number = 0; number < self->step_count; number++) {
        const step_t *step = &self->steps[number];
        int tensors = step->count + step->launch->temporary_count;
        if (self->tensor_count < tensors) self->tensor_count = tensors;
        if (self->argument_count < tensors + step->launch->scalar_count) self->argument_count = tensors + step->launch->scalar_count;
        if (self->scratch_bytes < step->launch->scratch_bytes) self->scratch_bytes = step->launch->scratch_bytes;
        for (int i = 0; i < step->count + step->conditions; i++) {
            const place_t *place = &step->places[i];
            if (self->farthest[place->slot] < place->offset) self->farthest[place->slot] = place->offset;
        }
    }
}

static int fill(sequence_t *self, PyObject *steps) {
    Py_ssize_t places = 0, count = PyTuple_GET_SIZE(steps);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *step = PyTuple_GET_ITEM(steps, i);
        if (is_step(step) && PyTuple_Check(PyTuple_GET_ITEM(step, 1))) places += PyTuple_GET_SIZE(PyTuple_GET_ITEM(step, 1));
    }
    self->steps = PyMem_Calloc(count + 1, sizeof *self->steps);
    self->places = PyMem_Calloc(places + 1, sizeof *self->places);
    self->farthest = PyMem_Calloc(self->slots + 1, sizeof *self->farthest);
    if (self->steps == NULL || self->places == NULL || self->farthest == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    place_t *next = self->places;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t read = read_step(self, i, PyTuple_GET_ITEM(steps, i), next);
        if (read < 0) return -1;
        next += read;
        self->step_count = i + 1;
    }
    measure(self);
    return 0;
}

static PyObject *sequence_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    static char *keywords[] = {"steps", "slots", NULL};
    PyObject *steps;
    Py_ssize_t slots;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!n:Sequence", keywords, &PyTuple_Type, &steps, &slots)) return NULL;
    if (slots < 0 || slots > MOST_SLOTS) {
        PyErr_Format(PyExc_ValueError, "slots of a sequence: given %zd; allowed: 0 to %d", slots, MOST_SLOTS);
        return NULL;
    }
    sequence_t *self = (sequence_t *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = sequence_call;
    self->slots = slots;
    if (fill(self, steps) < 0) Py_CLEAR(self);
    return (PyObject *)self;
}

/* Put other launches in the place of some, given as pairs (old, new). */
static int relaunch(sequence_t *self, PyObject *pairs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        if (!is_pair(pair) || !Py_IS_TYPE(PyTuple_GET_ITEM(pair, 0), &launch_type) || !Py_IS_TYPE(PyTuple_GET_ITEM(pair, 1), &launch_type)) {
            PyErr_SetString(PyExc_ValueError, "launches of a sequence: allowed: pairs of the extension's launches");
            return -1;
        }
    }
    for (Py_ssize_t number = 0; number < self->step_count; number++) {
        step_t *step = &self->steps[number];
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
            PyObject *pair = PyTuple_GET_ITEM(pairs, i);
            if (PyTuple_GET_ITEM(pair, 0) != (PyObject *)step->launch) continue;
            launch_t *before = step->launch;
            step->launch = (launch_t *)Py_NewRef(PyTuple_GET_ITEM(pair, 1));
            Py_DECREF(before);
            break;
        }
    }
    return 0;
}

/* Put other steps in the place of some, given as pairs (number, step), each with as many places as the one before. */
static int replace_steps(sequence_t *self, PyObject *pairs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        Py_ssize_t number = is_pair(pair) && PyLong_Check(PyTuple_GET_ITEM(pair, 0)) ? PyLong_AsSsize_t(PyTuple_GET_ITEM(pair, 0)) : -1;
        if (PyErr_Occurred()) return -1;
        if (number < 0 || number >= self->step_count) {
            PyErr_SetString(PyExc_ValueError, "steps of a sequence: allowed: pairs of a number of a step, and a step");
            return -1;
        }
        step_t before = self->steps[number];
        PyObject *step = PyTuple_GET_ITEM(pair, 1);
        PyObject *given = is_step(step) ? PyTuple_GET_ITEM(step, 1) : NULL;
        if (given == NULL || !PyTuple_Check(given) || PyTuple_GET_SIZE(given) != before.count + before.conditions) {
            return wrong_step(number, "a step with as many places as the one before");
        }
        if (read_step(self, number, step, (place_t *)before.places) < 0) return -1;
        Py_DECREF(before.launch);
    }
    return 0;
}

/* The same steps with other launches, and some with other places. */
static PyObject *sequence_varied(PyObject *object, PyObject *const *given, Py_ssize_t count) {
    sequence_t *self = (sequence_t *)object;
    if (count != 2 || !PyTuple_Check(given[0]) || !PyTuple_Check(given[1])) {
        PyErr_SetString(PyExc_TypeError, "varied takes two tuples: pairs of launches, and pairs of numbers and steps");
        return NULL;
    }
    Py_ssize_t places = 0;
    for (Py_ssize_t i = 0; i < self->step_count; i++) places += self->steps[i].count + self->steps[i].conditions;
    sequence_t *found = (sequence_t *)Py_TYPE(object)->tp_alloc(Py_TYPE(object), 0);
    if (found == NULL) return NULL;
    bool same_places = PyTuple_GET_SIZE(given[1]) == 0;
    found->vectorcall = sequence_call;
    found->slots = self->slots;
    found->steps = PyMem_Calloc(self->step_count + 1, sizeof *found->steps);
    found->farthest = PyMem_Calloc(self->slots + 1, sizeof *found->farthest);
    if (same_places) {
        found->owner = Py_NewRef(self->owner != NULL ? self->owner : object);
        found->places = self->places;
    } else {
        found->places = PyMem_Calloc(places + 1, sizeof *found->places);
    }
    if (found->steps == NULL || found->places == NULL || found->farthest == NULL) {
        PyErr_NoMemory();
        Py_DECREF(found);
        return NULL;
    }
    if (!same_places) memcpy(found->places, self->places, places * sizeof *found->places);
    for (Py_ssize_t i = 0; i < self->step_count; i++) {
        const step_t *step = &self->steps[i];
        found->steps[i] = *step;
        found->steps[i].launch = (launch_t *)Py_NewRef((PyObject *)step->launch);
        found->steps[i].places = found->places + (step->places - self->places);
        found->step_count = i + 1;
    }
    atomic_store_explicit(&found->lasted, atomic_load_explicit(&self->lasted, memory_order_relaxed), memory_order_relaxed);
    if (relaunch(found, given[0]) < 0 || replace_steps(found, given[1]) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    measure(found);
    return (PyObject *)found;
}

static void sequence_dealloc(PyObject *object) {
    sequence_t *self = (sequence_t *)object;
    for (Py_ssize_t i = 0; i < self->step_count; i++) Py_DECREF(self->steps[i].launch);
    PyMem_Free(self->steps);
    if (self->owner == NULL) PyMem_Free(self->places);
    Py_XDECREF(self->owner);
    PyMem_Free(self->farthest);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef sequence_methods[] = {
    {"bind", sequence_bind, METH_O, PyDoc_STR("A run on these arrays, for repeated calls.")},
    {"timed", sequence_timed, METH_O, PyDoc_STR("Run on these arrays, and return the nanoseconds of each step.")},
    {"varied", (PyCFunction)(void (*)(void))sequence_varied, METH_FASTCALL, PyDoc_STR("The same with other launches, and other steps.")},
    {0},
};

PyTypeObject sequence_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.Sequence",
    .tp_doc = PyDoc_STR("Launches that run in turn by one call, on arrays that begin at (slot, offset)."),
    .tp_basicsize = sizeof(sequence_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = sequence_new,
    .tp_dealloc = sequence_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(sequence_t, vectorcall),
    .tp_methods = sequence_methods,
};

PyTypeObject bound_sequence_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tvmdml.targets.cpu._native.BoundSequence",
    .tp_doc = PyDoc_STR("A sequence together with its arrays."),
    .tp_basicsize = sizeof(bound_sequence_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = bound_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(bound_sequence_t, vectorcall),
};
