/* The threads that parallel kernels run on, and the few functions of TVM's runtime that tasks and launches need. */
#ifndef TVMDML_POOL_H
#define TVMDML_POOL_H

#include <stdint.h>

/* One argument of a kernel: `TVMFFIAny` of tvm/ffi/c_api.h. */
typedef struct {
    int32_t kind;
    uint32_t zero;
    union {
        int64_t integer;
        void *pointer;
    } value;
} ffi_any;

/* What is called in libtvm_ffi. The library is found when the program runs, so this is filled in then. */
typedef struct {
    int (*call)(void *function, ffi_any *arguments, int32_t count, ffi_any *result); /* TVMFFIFunctionCall */
    void (*move_error)(void **error);                                              /* TVMFFIErrorMoveFromRaised */
    void (*set_error)(void *error);                                                /* TVMFFIErrorSetRaised */
    void (*say_error)(const char *kind, const char *message);                      /* TVMFFIErrorSetRaisedFromCStr */
    int (*release)(void *object);                                                  /* TVMFFIObjectDecRef */
} ffi_functions;

extern ffi_functions ffi;

/* `TVMParallelGroupEnv`: what a task learns about the others. */
typedef struct {
    void *barrier; /* always NULL: kernels of two phases make two launches */
    int32_t count;
} pool_group;

typedef int (*pool_task)(int number, pool_group *group, void *data);

/* `TVMBackendParallelLaunch`: run tasks 0 to count - 1, in any order, and return when all are done. A count of 0 is the limit
   below. Any number of threads may call it at once. Returns -1, with TVM's error set in this thread, if a task failed. */
int pool_launch(pool_task task, void *data, int count);

/* How many threads a launch may use, the caller's among them. Threads that exist already are not ended. */
void pool_set_limit(int limit);

/* How many threads were started in this process. */
int pool_started(void);

/* Once, before anything else. */
int pool_init(void);

#endif
