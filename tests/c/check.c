/* Runs operations of a pack on data from files, in memory between pages that nothing may touch, in several ways.

   check open FOLDER           say which level was opened
   check run FOLDER JOBS       run each job twice: with its tensors at the end, and at the begin of their pages; and say how many
                               threads that took
   check callers FOLDER JOBS   the same in eight threads at once
   check fork FOLDER JOBS      the same before, in and after a forked child
   check errors FOLDER JOBS    what must be refused, is

   Jobs are lines: a descriptor, then a file for each of its tensors. Outputs begin as what their files have, and end up there. */
#define _DEFAULT_SOURCE
#define OPS_IMPLEMENTATION
#include "ops.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TENSORS = 8, MOST_JOBS = 64, CALLERS = 8, ROUNDS = 5 };

typedef struct {
    const ops_operation *operation;
    char *files[MOST_TENSORS];
    char *given[MOST_TENSORS];  /* what the files have */
    char *wanted[MOST_TENSORS]; /* what the first run has made of it */
} job_t;

static job_t jobs[MOST_JOBS];
static int job_count;

static void fail(const char *what, const char *which) {
    fprintf(stderr, "check: %s: %s\n", what, which);
    exit(1);
}

static void *allocated(size_t size) {
    void *memory = malloc(size);
    if (memory == NULL) fail("no memory", "");
    return memory;
}

static char *line_of(FILE *stream) {
    static char line[8192];
    char *copy;
    size_t length;
    if (fgets(line, sizeof line, stream) == NULL) return NULL;
    length = strcspn(line, "\n");
    line[length] = '\0';
    copy = (char *)allocated(length + 1);
    memcpy(copy, line, length + 1);
    return copy;
}

static void read_jobs(const char *path) {
    FILE *stream = fopen(path, "r");
    char *descriptor;
    if (stream == NULL) fail("cannot read", path);
    while ((descriptor = line_of(stream)) != NULL) {
        job_t *job = &jobs[job_count++];
        int i;
        job->operation = ops_find(descriptor);
        if (job->operation == NULL) fail("no such operation", descriptor);
        free(descriptor);
        for (i = 0; i < job->operation->count; i++) {
            size_t size = (size_t)job->operation->tensors[i].bytes;
            FILE *data;
            job->files[i] = line_of(stream);
            if (job->files[i] == NULL) fail("cut short", path);
            data = fopen(job->files[i], "rb");
            job->given[i] = (char *)allocated(size);
            job->wanted[i] = NULL;
            if (data == NULL || fread(job->given[i], 1, size, data) != size || fgetc(data) != EOF) fail("not of its size", job->files[i]);
            fclose(data);
        }
    }
    fclose(stream);
}

/* Run a job in guarded memory; whether its outputs are what they were the first time. */
static int run(job_t *job, int at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages[MOST_TENSORS];
    size_t sizes[MOST_TENSORS];
    void *tensors[MOST_TENSORS];
    int i, same = 1;
    for (i = 0; i < job->operation->count; i++) {
        size_t size = (size_t)job->operation->tensors[i].bytes, inside = (size + page - 1) / page * page;
        sizes[i] = inside + 2 * page;
        pages[i] = (char *)mmap(NULL, sizes[i], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages[i] == MAP_FAILED || mprotect(pages[i] + page, inside, PROT_READ | PROT_WRITE) != 0) fail("no memory", "");
        tensors[i] = pages[i] + page + (at_end ? inside - size : 0);
        memset(pages[i] + page, 0x5a, inside);
        memcpy(tensors[i], job->given[i], size);
        if (!job->operation->tensors[i].written && mprotect(pages[i] + page, inside, PROT_READ) != 0) fail("no memory", "");
    }
    if (ops_run(job->operation, tensors) != 0) fail(job->operation->function, ops_error());
    for (i = 0; i < job->operation->count; i++) {
        size_t size = (size_t)job->operation->tensors[i].bytes, inside = sizes[i] - 2 * page, k;
        for (k = 0; k < inside - size; k++) { /* the rest of its pages */
            if (pages[i][page + k + (at_end ? 0 : size)] != 0x5a) fail("a write outside of the output", job->operation->function);
        }
        if (job->wanted[i] == NULL) {
            job->wanted[i] = (char *)allocated(size);
            memcpy(job->wanted[i], tensors[i], size);
        }
        same &= memcmp(job->wanted[i], tensors[i], (size_t)job->operation->tensors[i].bytes) == 0;
        munmap(pages[i], sizes[i]);
    }
    return same;
}

static void run_all(void) {
    int i;
    for (i = 0; i < job_count; i++) {
        if (!run(&jobs[i], 1) || !run(&jobs[i], 0)) fail("not the same again", jobs[i].operation->function);
    }
}

static void *caller(void *unused) {
    int round;
    for (round = 0; round < ROUNDS; round++) run_all();
    return unused;
}

static void call_at_once(void) {
    pthread_t threads[CALLERS];
    int i;
    for (i = 0; i < CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, caller, NULL) != 0) fail("no threads", "");
    }
    for (i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
}

static void run_in_child(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a child that waits for threads that it does not have */
        run_all();
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("the child", "has failed");
    run_all();
}

static int threads_of_this(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    if (tasks == NULL) fail("no", "/proc");
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

static void expect(int refused, const char *words) {
    if (!refused || strstr(ops_error(), words) == NULL) fail("an error was to say", words);
    printf("%s\n", ops_error());
}

static void misuse(const char *folder) {
    void *none[MOST_TENSORS] = {NULL};
    ops_operation copy = *jobs[0].operation;
    int i;
    expect(ops_run(NULL, none) == -1, "no operation was given");
    expect(ops_run(&copy, none) == -1, "not one of this header's");
    expect(ops_run(jobs[0].operation, NULL) == -1, "no tensors were given");
    expect(ops_run(jobs[0].operation, none) == -1, "tensor 0 is NULL");
    for (i = 0; i < job_count && jobs[i].operation->tensors[0].type.bits == 8; i++) {}
    none[0] = (char *)none + 1;
    expect(i < job_count && ops_run(jobs[i].operation, none) == -1, "tensor 0 is not aligned to its elements");
    none[0] = NULL;
    for (i = 0; i < job_count && jobs[i].operation->count != 2; i++) {}
    {
        char *memory = (char *)allocated(2 * (size_t)(jobs[i].operation->tensors[0].bytes + jobs[i].operation->tensors[1].bytes));
        void *same[2];
        same[0] = memory;
        same[1] = memory + jobs[i].operation->tensors[0].bytes - jobs[i].operation->tensors[0].type.bits / 8;
        expect(ops_run(jobs[i].operation, same) == -1, "tensors 0 and 1 are in the same memory");
        same[0] = same[1] = memory;
        expect(ops_run(jobs[i].operation, same) == -1, "tensors 0 and 1 are in the same memory");
        free(memory);
    }
    if (ops_find("{ operator = \"NO_SUCH\" }") != NULL || ops_find("") != NULL || ops_find(NULL) != NULL) fail("found", "what is not there");
    ops_close();
    expect(ops_run(jobs[0].operation, none) == -1, "call ops_open first");
    if (ops_level()[0] != '\0' || ops_threads(0) != 1) fail("closed", "but not so");
    ops_close();
    if (ops_open(folder) != 0 || ops_open(folder) != 0) fail(folder, ops_error());
    run_all();
    if (ops_threads(2) != 2 || ops_threads(0) != 2 || ops_threads(-1) != 1) fail("threads", "not as asked for");
    run_all();
}

static void write_outputs(void) {
    int i, k;
    for (i = 0; i < job_count; i++) {
        for (k = 0; k < jobs[i].operation->count; k++) {
            size_t size = (size_t)jobs[i].operation->tensors[k].bytes;
            if (jobs[i].operation->tensors[k].written) {
                FILE *data = fopen(jobs[i].files[k], "wb");
                if (data == NULL || fwrite(jobs[i].wanted[k], 1, size, data) != size || fclose(data) != 0) fail("cannot write", jobs[i].files[k]);
            }
            free(jobs[i].files[k]);
            free(jobs[i].given[k]);
            free(jobs[i].wanted[k]);
        }
    }
}

int main(int count, char **arguments) {
    const char *way = count > 2 ? arguments[1] : "";
    if (count < 3) fail("takes", "a way, a folder and jobs");
    if (ops_open(arguments[2]) != 0) fail("open", ops_error());
    printf("%s, %d threads\n", ops_level(), ops_threads(0));
    if (strcmp(way, "open") == 0) return 0;
    if (count != 4) fail("takes", "a way, a folder and jobs");
    read_jobs(arguments[3]);
    run_all();
    if (strcmp(way, "run") == 0) printf("it took %d\n", threads_of_this());
    if (strcmp(way, "callers") == 0) call_at_once();
    if (strcmp(way, "fork") == 0) run_in_child();
    if (strcmp(way, "errors") == 0) misuse(arguments[2]);
    write_outputs();
    ops_close();
    return 0;
}
