/* The pool for a library of kernels that contains its own pool: nobody has to provide one.

   It is initialized when the library is loaded. A program that loads several such libraries should give all of them the pool of
   one, because otherwise each starts its own threads. */
#include "pool.c" /* in one translation unit: the versions below are for its calls, too */

#include <stdlib.h>

/* Functions that moved within glibc have a new symbol version, and a library linked today would require it. The old version is
   available everywhere. */
#if defined(__GLIBC__) && defined(__x86_64__)
#define SINCE "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define SINCE "GLIBC_2.17"
#endif
#ifdef SINCE
__asm__(".symver pthread_create, pthread_create@" SINCE);
__asm__(".symver pthread_sigmask, pthread_sigmask@" SINCE);
#if defined(__aarch64__)
__asm__(".symver pthread_setname_np, pthread_setname_np@GLIBC_2.17");
#else
__asm__(".symver pthread_setname_np, pthread_setname_np@GLIBC_2.12");
#endif
#endif

#define EXPORTED __attribute__((visibility("default")))
#define MAYBE __attribute__((weak, visibility("default")))

/* From libtvm_ffi, if the process has loaded it. */
extern MAYBE void TVMFFIErrorMoveFromRaised(void **error);
extern MAYBE void TVMFFIErrorSetRaised(void *error);
extern MAYBE void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
extern MAYBE int TVMFFIObjectDecRef(void *object);

/* Kernels of this library launch through this pointer. Some loaders set it before constructors run, and some after. */
EXPORTED __attribute__((weak)) void *__TVMBackendParallelLaunch;

/* Without libtvm_ffi nothing can hold an error object, but callers must still learn that there was an error. */
static void move_nothing(void **error) {
    static char some;
    *error = &some;
}

static void set_nothing(void *error) {
    (void)error;
}

static void say_nothing(const char *kind, const char *message) {
    (void)kind;
    (void)message;
}

static int release_nothing(void *object) {
    (void)object;
    return 0;
}

EXPORTED int tvmdml_pool_launch(pool_task task, void *data, int count) {
    return pool_launch(task, data, count);
}

/* Returns the limit; 0 leaves it as it is. */
EXPORTED int tvmdml_pool_set_limit(int threads) {
    if (threads != 0) pool_set_limit(threads);
    return atomic_load_explicit(&limit, memory_order_relaxed);
}

/* TVMDML_NUM_THREADS, or the processors that this process may run on. (Not by strtol: its symbol version moved too.) */
static int threads_wanted(void) {
    const char *text = getenv("TVMDML_NUM_THREADS");
    int wanted = 0;
    for (; text != NULL && *text >= '0' && *text <= '9' && wanted <= MOST_THREADS; text++) wanted = 10 * wanted + (*text - '0');
    if (wanted >= 1 && wanted <= MOST_THREADS && *text == '\0') return wanted;
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

__attribute__((constructor)) static void begin(void) {
    /* All or none: an error that one of them creates is passed to the others. `ffi.call` is only for launches from Python. */
    if (TVMFFIErrorMoveFromRaised && TVMFFIErrorSetRaised && TVMFFIErrorSetRaisedFromCStr && TVMFFIObjectDecRef) {
        ffi.move_error = TVMFFIErrorMoveFromRaised;
        ffi.set_error = TVMFFIErrorSetRaised;
        ffi.say_error = TVMFFIErrorSetRaisedFromCStr;
        ffi.release = TVMFFIObjectDecRef;
    } else {
        ffi.move_error = move_nothing;
        ffi.set_error = set_nothing;
        ffi.say_error = say_nothing;
        ffi.release = release_nothing;
    }
    pool_init();
    pool_set_limit(threads_wanted());
    if (__TVMBackendParallelLaunch == NULL) __TVMBackendParallelLaunch = (void *)tvmdml_pool_launch;
}
