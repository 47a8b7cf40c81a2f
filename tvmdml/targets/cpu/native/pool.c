/* One thread pool for the process.

   A launch takes a slot, writes its job there, and works on it together with the workers: the caller claims tasks from the first
   upwards, workers from the last downwards, until none is left. A launch that gets no help therefore costs as much as a plain
   loop, and a launch repeated on the same data finds each part in the cache of the core that had it before.

   Slots are never freed, so a worker may look at a slot long after the launch that used it has returned. A worker claims a task
   with a compare-and-swap on the slot's ticket. The ticket holds the launch's number, so this succeeds only while that launch
   waits. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

enum {
    SLOTS = 64,          /* concurrent launches that can have help; the bits of a word */
    MOST_CLAIMS = 65535, /* the ticket has 16 bits for them */
    MOST_THREADS = 1024,
    SPIN_NANOSECONDS = 20000, /* about the cost of putting a thread to sleep and waking it */
    /* How long a worker keeps its processor without work: longer than most kernels of a graph that one thread runs alone. A thread
       that yields is away for milliseconds if any other wants the processor, even one of the lowest priority. */
    KEEP_NANOSECONDS = 100000,
    /* How long a worker stays awake for the next launch. A kernel of 100 us ends before the worker that it wakes is running. The
       worker must then be awake for the next such kernel, or no launch in a series of them would ever have help. */
    AWAKE_NANOSECONDS = 1000000,
    PAUSES = 32,              /* between reads of the clock */
    LINE = 128,               /* two cache lines: processors prefetch them in pairs */
};

/* A ticket: the launch's number, the end of the unclaimed claims, and the first of them. When the two are equal, none is left. */
#define TICKET(number, end, begin) ((uint64_t)(number) << 32 | (uint64_t)(end) << 16 | (uint64_t)(begin))
#define NUMBER(ticket) ((uint32_t)((ticket) >> 32))
#define END(ticket) ((int)((ticket) >> 16 & 0xffff))
#define BEGIN(ticket) ((int)((ticket)&0xffff))

typedef struct {
    _Alignas(LINE) _Atomic uint64_t ticket;
    _Atomic(pool_task) task;
    _Atomic(void *) data;
    _Atomic int count;     /* tasks */
    _Atomic int per_claim; /* tasks that are claimed together: 1, unless there are more than a ticket can count */
    _Alignas(LINE) _Atomic int pending; /* claims that are not done */
    _Atomic bool waiting;               /* the caller sleeps */
    _Atomic(void *) error;              /* the first error of a task; owned by the slot */
    pthread_mutex_t mutex;
    pthread_cond_t done;
} slot_t;

static struct {
    slot_t slots[SLOTS];
    _Alignas(LINE) _Atomic uint64_t taken; /* slots in use, one bit each */
    _Alignas(LINE) _Atomic uint64_t open;  /* slots in use that may have unclaimed tasks */
    _Atomic uint32_t launches;             /* incremented by each launch */
    _Alignas(LINE) _Atomic int sleepers;
    _Atomic int started;
    _Atomic int caller_cpu; /* the CPU of the last launch's caller */
    _Atomic int asked; /* threads requested: after a refusal, not every launch asks again */
    pthread_mutex_t mutex; /* for sleeping, and for starting threads */
    pthread_cond_t work;
} pool;

static _Atomic int limit = 1;
static _Thread_local bool inside; /* this thread is running a task */
static _Thread_local int own_limit; /* of this thread's launches; 0 for the one of all */

ffi_functions ffi;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most of these processors */
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* -- Tasks -------------------------------------------------------------------------------------------------------- */

/* Move this thread's error into the slot. Only the first error is kept. */
static void keep_error(slot_t *slot) {
    void *error = NULL, *none = NULL;
    ffi.move_error(&error);
    if (error == NULL) {
        ffi.say_error("RuntimeError", "a part of a parallel kernel failed without an error message");
        ffi.move_error(&error);
    }
    if (error != NULL && !atomic_compare_exchange_strong(&slot->error, &none, error)) ffi.release(error);
}

/* Claim tasks of one slot and run them until all are claimed. Returns whether it ran any. */
static bool work_on(slot_t *slot, bool caller) {
    bool found = false;
    uint64_t ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
    while (BEGIN(ticket) < END(ticket)) {
        /* If the exchange succeeds, these belong to the ticket's launch: they are not overwritten before all tasks are claimed. */
        pool_task task = atomic_load_explicit(&slot->task, memory_order_relaxed);
        void *data = atomic_load_explicit(&slot->data, memory_order_relaxed);
        int count = atomic_load_explicit(&slot->count, memory_order_relaxed);
        int per_claim = atomic_load_explicit(&slot->per_claim, memory_order_relaxed);
        int claim = caller ? BEGIN(ticket) : END(ticket) - 1;
        uint64_t rest = caller ? ticket + TICKET(0, 0, 1) : ticket - TICKET(0, 1, 0);
        if (!atomic_compare_exchange_weak_explicit(&slot->ticket, &ticket, rest, memory_order_acq_rel, memory_order_acquire)) {
            continue;
        }
        found = true;
        pool_group group = {NULL, count};
        int end = count - claim * per_claim > per_claim ? (claim + 1) * per_claim : count;
        for (int number = claim * per_claim; number < end; number++) {
            if (task(number, &group, data) != 0) keep_error(slot);
        }
        /* From here on the launch may be over. The slot still exists; at worst a later launch's caller is woken for nothing. */
        if (atomic_fetch_sub(&slot->pending, 1) == 1 && atomic_load(&slot->waiting)) {
            pthread_mutex_lock(&slot->mutex); /* the caller is not between its check of `pending` and its sleep */
            pthread_mutex_unlock(&slot->mutex);
            pthread_cond_signal(&slot->done);
        }
        ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
    }
    return found;
}

/* -- Workers ------------------------------------------------------------------------------------------------------ */

static bool work_anywhere(void) {
    bool found = false;
    uint64_t open = atomic_load_explicit(&pool.open, memory_order_acquire);
    for (; open != 0; open &= open - 1) {
        found |= work_on(&pool.slots[__builtin_ctzll(open)], false);
    }
    return found;
}

/* Leave the processor that the caller runs on. Systems often wake a thread on the waker's processor, and may then take several
   milliseconds to notice that another processor is idle. */
static void make_room_for_caller(void) {
#if defined(__linux__)
    cpu_set_t allowed, others;
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE || here != atomic_load_explicit(&pool.caller_cpu, memory_order_relaxed)) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    others = allowed;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) return;
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

/* Wait until there is a launch after `seen`. First stay awake, because kernels often follow one another, but after a while yield
   to any other thread that has work. */
static void wait_for_launch(uint32_t seen) {
    int64_t begin = nanoseconds(), now = begin;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(&pool.launches, memory_order_acquire) != seen) return;
            pause_briefly();
        }
        if (now - begin >= KEEP_NANOSECONDS) sched_yield();
        now = nanoseconds();
    } while (now - begin < AWAKE_NANOSECONDS);
    pthread_mutex_lock(&pool.mutex);
    atomic_fetch_add(&pool.sleepers, 1); /* a later launch sees a sleeper; an earlier one is seen below */
    while (atomic_load(&pool.launches) == seen) pthread_cond_wait(&pool.work, &pool.mutex);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.mutex);
    make_room_for_caller();
}

static void *worker(void *unused) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "tvmdml");
#elif defined(__APPLE__)
    pthread_setname_np("tvmdml");
#endif
    inside = true; /* always: a launch inside a task runs on the task's own thread */
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool.launches, memory_order_acquire);
        if (!work_anywhere()) wait_for_launch(seen);
    }
    return unused;
}

/* Start threads until there are `wanted` workers, if the system allows. */
static void start(int wanted) {
    sigset_t all, before;
    pthread_attr_t detached;
    static const int faults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    pthread_mutex_lock(&pool.mutex);
    if (atomic_load(&pool.asked) < wanted) atomic_store(&pool.asked, wanted);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]); /* a thread's own, wherever they are */
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited by workers: the program's own threads handle signals */
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    while (atomic_load(&pool.started) < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &detached, worker, NULL) != 0) break; /* the existing workers or the caller do the work */
        atomic_fetch_add(&pool.started, 1);
    }
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&pool.mutex);
}

static void wake(int wanted) {
    int sleepers = atomic_load(&pool.sleepers);
    if (sleepers == 0) return;
    pthread_mutex_lock(&pool.mutex); /* no worker is between its check of `launches` and its sleep */
    pthread_mutex_unlock(&pool.mutex);
    if (wanted >= sleepers) {
        pthread_cond_broadcast(&pool.work);
    } else {
        for (int i = 0; i < wanted; i++) pthread_cond_signal(&pool.work);
    }
}

/* -- Launches ----------------------------------------------------------------------------------------------------- */

static slot_t *take_slot(void) {
    uint64_t taken = atomic_load_explicit(&pool.taken, memory_order_relaxed);
    while (taken != UINT64_MAX) {
        int index = __builtin_ctzll(~taken);
        if (atomic_compare_exchange_weak_explicit(
                &pool.taken, &taken, taken | UINT64_C(1) << index, memory_order_acquire, memory_order_relaxed)) {
            return &pool.slots[index];
        }
    }
    return NULL;
}

static void wait_until_done(slot_t *slot) {
    int64_t until = 0;
    for (int i = 1; atomic_load_explicit(&slot->pending, memory_order_acquire) != 0; i++) {
        if (i % PAUSES == 0) {
            if (until == 0) {
                until = nanoseconds() + SPIN_NANOSECONDS;
            } else if (nanoseconds() >= until) {
                break;
            }
        }
        pause_briefly();
    }
    if (atomic_load_explicit(&slot->pending, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&slot->mutex);
    atomic_store(&slot->waiting, true);
    while (atomic_load(&slot->pending) != 0) pthread_cond_wait(&slot->done, &slot->mutex);
    atomic_store(&slot->waiting, false);
    pthread_mutex_unlock(&slot->mutex);
}

static int run_alone(pool_task task, void *data, int count) {
    pool_group group = {NULL, count};
    for (int number = 0; number < count; number++) {
        if (task(number, &group, data) != 0) return -1; /* this thread already holds its error */
    }
    return 0;
}

/* Whether a kernel's loop has one round. A kernel does not say how many it has, but the first of the values that the loop uses is
   their number. Of a kernel for which that is not so, this is a guess that costs time, but no result. */
static bool rounds_are_one(const void *data) {
    int64_t first = 0;
    if (data != NULL) memcpy(&first, data, sizeof first);
    return first == 1;
}

int pool_launch(pool_task task, void *data, int count) {
    int threads = atomic_load_explicit(&limit, memory_order_relaxed), most_claims = MOST_CLAIMS;
    if (own_limit > 0) { /* as many claims as threads: every thread of the pool may take one */
        threads = own_limit < threads ? own_limit : threads;
        most_claims = threads;
    }
    if (count <= 0) count = rounds_are_one(data) ? 1 : threads;
    slot_t *slot = NULL;
    if (count > 1 && threads > 1 && !inside) {
        int helpers = (count < threads ? count : threads) - 1;
        if (atomic_load_explicit(&pool.asked, memory_order_relaxed) < helpers) start(helpers);
        if (atomic_load_explicit(&pool.started, memory_order_relaxed) > 0) slot = take_slot();
    }
    if (slot == NULL) return run_alone(task, data, count);

    int per_claim = (count - 1) / most_claims + 1;
    int claims = (count - 1) / per_claim + 1;
    uint64_t bit = UINT64_C(1) << (slot - pool.slots);
#if defined(__linux__)
    atomic_store_explicit(&pool.caller_cpu, sched_getcpu(), memory_order_relaxed);
#endif
    uint32_t number = NUMBER(atomic_load_explicit(&slot->ticket, memory_order_relaxed)) + 1;
    atomic_store_explicit(&slot->task, task, memory_order_relaxed);
    atomic_store_explicit(&slot->data, data, memory_order_relaxed);
    atomic_store_explicit(&slot->count, count, memory_order_relaxed);
    atomic_store_explicit(&slot->per_claim, per_claim, memory_order_relaxed);
    atomic_store_explicit(&slot->pending, claims, memory_order_relaxed);
    atomic_store_explicit(&slot->ticket, TICKET(number, claims, 0), memory_order_release);
    atomic_fetch_or_explicit(&pool.open, bit, memory_order_release);
    atomic_fetch_add(&pool.launches, 1);
    wake(claims - 1);

    inside = true;
    work_on(slot, true);
    inside = false;
    atomic_fetch_and_explicit(&pool.open, ~bit, memory_order_relaxed);
    wait_until_done(slot);

    void *error = atomic_exchange_explicit(&slot->error, NULL, memory_order_relaxed);
    atomic_fetch_and_explicit(&pool.taken, ~bit, memory_order_release);
    if (error == NULL) return 0;
    ffi.set_error(error);
    ffi.release(error);
    return -1;
}

void pool_set_limit(int threads) {
    atomic_store(&limit, threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads);
}

int pool_limit_thread(int threads) {
    int before = own_limit;
    own_limit = threads < 0 ? 0 : threads > MOST_THREADS ? MOST_THREADS : threads;
    return before;
}

int pool_started(void) {
    return atomic_load(&pool.started);
}

/* -- Fork --------------------------------------------------------------------------------------------------------- */

/* Reset everything: a forked child has none of the threads that worked, waited or held a lock. Its one thread ran no task, because
   tasks do not fork. Ticket numbers restart, because no thread is left that has read one. */
static void renew(void) {
    for (int i = 0; i < SLOTS; i++) {
        slot_t *slot = &pool.slots[i];
        atomic_store_explicit(&slot->ticket, 0, memory_order_relaxed);
        atomic_store_explicit(&slot->pending, 0, memory_order_relaxed);
        atomic_store_explicit(&slot->waiting, false, memory_order_relaxed);
        atomic_store_explicit(&slot->error, NULL, memory_order_relaxed); /* not freed: a lock of the runtime may be held forever */
        pthread_mutex_init(&slot->mutex, NULL);
        pthread_cond_init(&slot->done, NULL);
    }
    atomic_store_explicit(&pool.taken, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.open, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.launches, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.sleepers, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.started, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.asked, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.caller_cpu, -1, memory_order_relaxed);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.work, NULL);
}

int pool_init(void) {
    renew();
    return pthread_atfork(NULL, NULL, renew);
}
