/* The thread pool by itself, hard pressed: built with a sanitizer, which says what is wrong. `stress_pool threads|fork SECONDS`.

   Tasks write to plain memory, each to its own: a task that runs twice, or a launch that returns before its tasks are done, is a race. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLERS = 70, MOST = 70000 }; /* more callers than the pool has slots, more tasks than a ticket can count */

static const int counts[] = {1, 2, 3, 7, 0, 64, 5, 1000, 2, 13, MOST};

#define CHECK(truth) \
    do { \
        if (!(truth)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #truth); \
            abort(); \
        } \
    } while (0)

/* -- Errors, as the runtime has them: one a thread, counted ---------------------------------------------------------

   Nothing here allocates after the beginning: a sanitizer's own allocator does not survive a fork that comes at a bad time. */

static _Thread_local void *raised;
static _Atomic long errors_alive;

static void move_error(void **error) {
    *error = raised;
    raised = NULL;
}

static int release(void *error) {
    CHECK(error == &errors_alive);
    errors_alive--;
    return 0;
}

static void set_error(void *error) { /* the caller keeps its own reference, so this is another one */
    if (raised != NULL) release(raised);
    raised = error;
    errors_alive++;
}

static void say_error(const char *kind, const char *message) {
    (void)kind, (void)message;
    set_error(&errors_alive);
}

static int call_nothing(void *function, ffi_any *arguments, int32_t count, ffi_any *result) {
    (void)function, (void)arguments, (void)count, (void)result;
    return -1;
}

/* -- Work ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    int count, failing; /* tasks that were asked for; the first one that fails, as do those after it, or -1 */
    bool nested, silent;
    int *runs; /* of each task */
} job_t;

static int task(int number, pool_group *group, void *data) {
    job_t *job = data;
    CHECK(group->barrier == NULL && number >= 0 && number < group->count);
    CHECK(job->count == 0 || group->count == job->count);
    job->runs[number]++;
    if (job->nested) {
        int runs[8] = {0};
        job_t inner = {.count = 8, .failing = job->failing >= 0 && number >= job->failing ? 3 : -1, .runs = runs};
        int status = pool_launch(task, &inner, 8);
        for (int i = 0; i < 8; i++) CHECK(runs[i] == 1 || (inner.failing >= 0 && runs[i] == 0));
        return status;
    }
    if (job->failing < 0 || number < job->failing) return 0;
    if (!job->silent) say_error("ValueError", "as it should be");
    return -1;
}

static void launch(unsigned seed, int *runs) {
    job_t job = {.count = counts[seed % (sizeof counts / sizeof *counts)], .failing = -1, .runs = runs};
    int most = job.count ? job.count : 1024; /* 0 is the limit, which changes */
    if (job.count > 1000 && seed % 50 != 0) job.count = most = 100;
    job.nested = seed % 5 == 1 && job.count <= 100;
    if (seed % 7 == 3 && job.count > 0) {
        job.failing = (int)(seed % (unsigned)job.count);
        job.silent = seed % 2 && !job.nested;
    }
    memset(runs, 0, (size_t)most * sizeof *runs);
    int status = pool_launch(task, &job, job.count);
    CHECK(status == (job.failing < 0 ? 0 : -1));
    for (int i = 0; i < job.count; i++) CHECK(runs[i] == 1 || (job.failing >= 0 && runs[i] == 0));
    if (job.count == 0) CHECK(runs[0] == 1);
    if (status != 0 && !(job.silent && raised == NULL)) { /* alone, a task that said nothing leaves nothing */
        void *error = NULL;
        move_error(&error);
        CHECK(error != NULL);
        release(error);
    }
}

static _Atomic bool over;
static int all_runs[CALLERS + 1][MOST];

static void *caller(void *number) {
    int *runs = all_runs[(uintptr_t)number];
    unsigned seed = (unsigned)(uintptr_t)number * 7919;
    while (!over) launch(seed++, runs);
    return NULL;
}

static void *changer(void *unused) {
    static const int limits[] = {4, 1, 8, 2, 0, 3, -5, 16};
    for (unsigned i = 0; !over; i++) {
        pool_set_limit(limits[i % 8]);
        CHECK(pool_started() >= 0);
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    }
    return unused;
}

static void run(int callers, double seconds) {
    pthread_t threads[CALLERS + 1];
    over = false;
    for (int i = 0; i < callers; i++) CHECK(pthread_create(&threads[i], NULL, caller, (void *)(uintptr_t)(i + 1)) == 0);
    CHECK(pthread_create(&threads[callers], NULL, changer, NULL) == 0);
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
    over = true;
    for (int i = 0; i <= callers; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(errors_alive == 0);
}

/* A child is forked while others work, and works itself; so does its own child. */
static void forked(int depth) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(pool_started() == 0);
        raised = NULL;
        pool_set_limit(4);
        for (unsigned seed = 0; seed < 200; seed++) launch(seed, all_runs[0]);
        CHECK(pool_started() == 3);
        if (depth > 0) forked(depth - 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    ffi = (ffi_functions){call_nothing, move_error, set_error, say_error, release};
    double seconds = atof(arguments[2]);
    CHECK(pool_init() == 0);
    pool_set_limit(4);
    if (strcmp(arguments[1], "threads") == 0) {
        run(3, seconds / 2);
        run(CALLERS, seconds / 2);
    } else {
        pthread_t others[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&others[i], NULL, caller, (void *)(uintptr_t)(i + 1)) == 0);
        for (double end = (double)time(NULL) + seconds; (double)time(NULL) <= end;) forked(1);
        over = true;
        for (int i = 0; i < 4; i++) CHECK(pthread_join(others[i], NULL) == 0);
        CHECK(errors_alive == 0);
    }
    printf("%d workers\n", pool_started());
    return 0; /* with workers that are still awake */
}
