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

/* How a kernel is called: `TVMFFISafeCallType`. A compiled kernel makes no use of its first argument. */
typedef int ffi_call(void *function, ffi_any *arguments, int32_t count, ffi_any *result);

/* The functions of libtvm_ffi that are called. The library is found at run time, so this table is filled in then. */
typedef struct {
    ffi_call *call;                                                                /* TVMFFIFunctionCall */
    void (*move_error)(void **error);                                              /* TVMFFIErrorMoveFromRaised */
    void (*set_error)(void *error);                                                /* TVMFFIErrorSetRaised */
    void (*say_error)(const char *kind, const char *message);                      /* TVMFFIErrorSetRaisedFromCStr */
    int (*release)(void *object);                                                  /* TVMFFIObjectDecRef */
} ffi_functions;

extern ffi_functions ffi;

/* `TVMParallelGroupEnv`: what a task is told about the group of tasks. */
typedef struct {
    void *barrier; /* always NULL: a kernel with two phases makes two launches */
    int32_t count;
} pool_group;

typedef int (*pool_task)(int number, pool_group *group, void *data);

/* `TVMBackendParallelLaunch`: run tasks 0 to count - 1 in any order, and return when all are done. A count of 0 means the limit
   below. Threads may call it concurrently. Returns -1, with TVM's error set in this thread, if a task failed. */
int pool_launch(pool_task task, void *data, int count);

/* Set how many threads a launch may use, the caller's included. Existing threads are not ended. */
void pool_set_limit(int limit);

/* Set how many threads launches of the calling thread may use, if that is fewer; 0 for as many as others. Returns what it was. */
int pool_limit_thread(int limit);

/* The number of threads started in this process. */
int pool_started(void);

/* Call this once, before anything else. */
int pool_init(void);

#endif
