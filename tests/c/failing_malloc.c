/* Loaded before everything else (LD_PRELOAD): has one allocation, or the start of one thread, fail when it is told to; or holds
   threads back from their first step. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

enum { FAILED = -2 };

static long left_memory = -1, left_threads = -1; /* allocations, and threads, until the one that fails; negative is never */

/* Has the allocation fail that comes after so many others, and in the same way a thread. Negative numbers forbid nothing. */
void fail_after(long memory, long threads) {
  __atomic_store_n(&left_memory, memory, __ATOMIC_SEQ_CST);
  __atomic_store_n(&left_threads, threads, __ATOMIC_SEQ_CST);
}

/* Has nothing fail any more; whether what was to fail has failed. */
int fail_no_more(void) {
  long memory = __atomic_exchange_n(&left_memory, -1, __ATOMIC_SEQ_CST);
  long threads = __atomic_exchange_n(&left_threads, -1, __ATOMIC_SEQ_CST);
  return memory == FAILED || threads == FAILED;
}

static int held; /* threads that are started wait before their first step */

void hold_threads(void) { __atomic_store_n(&held, 1, __ATOMIC_SEQ_CST); }

/* Lets threads go, and for some time has the next allocation of any other thread fail; whether one has. */
int fail_elsewhere(unsigned microseconds) {
  fail_after(0, -1);
  __atomic_store_n(&held, 0, __ATOMIC_SEQ_CST);
  usleep(microseconds);
  return fail_no_more();
}

static int fails(long *left) {
  long before = __atomic_load_n(left, __ATOMIC_RELAXED);
  while (before >= 0) {
    if (__atomic_compare_exchange_n(left, &before, before ? before - 1 : FAILED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      return before == 0;
    }
  }
  return 0;
}

static void *refused(void) {
  errno = ENOMEM;
  return NULL;
}

void *malloc(size_t size) { return fails(&left_memory) ? refused() : __libc_malloc(size); }

void *calloc(size_t count, size_t size) { return fails(&left_memory) ? refused() : __libc_calloc(count, size); }

void *realloc(void *old, size_t size) { return fails(&left_memory) ? refused() : __libc_realloc(old, size); }

void *aligned_alloc(size_t alignment, size_t size) {
  return fails(&left_memory) ? refused() : __libc_memalign(alignment, size);
}

int posix_memalign(void **found, size_t alignment, size_t size) {
  void *made = fails(&left_memory) ? NULL : __libc_memalign(alignment, size);
  if (made == NULL) {
    return ENOMEM;
  }
  *found = made;
  return 0;
}

typedef struct {
  void *(*start)(void *);
  void *argument;
} thread;

static void *late(void *given) {
  thread it = *(thread *)given;
  free(given);
  while (__atomic_load_n(&held, __ATOMIC_SEQ_CST)) {
    usleep(1000);
  }
  return it.start(it.argument);
}

int pthread_create(pthread_t *created, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (fails(&left_threads)) {
    return EAGAIN;
  }
  if (real == NULL) {
    real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
  }
  if (!__atomic_load_n(&held, __ATOMIC_SEQ_CST)) {
    return real(created, attributes, start, argument);
  }
  thread *it = __libc_malloc(sizeof *it);
  if (it == NULL) {
    return EAGAIN;
  }
  *it = (thread){start, argument};
  return real(created, attributes, late, it);
}
