/* Runs a graph with open sizes of a pack, its tensors in memory between pages that nothing may touch: at the end and at the begin of
   their pages, in three threads at once, each with a context of its own, which meets the sizes in another order.

   open_graph FOLDER JOBS     each line of the file has sizes, and the path of the inputs' bytes, one after another; a thread writes
                              the outputs' bytes to that path, ".out" and its number, and the first one prints errors
   open_graph FOLDER errors   say what is wrong with some calls */
#define _DEFAULT_SOURCE
#define NET_IMPLEMENTATION
#include "net.h"

#include <pthread.h>
#include <sys/mman.h>

enum { CALLERS = 3, MOST = 16, MOST_JOBS = 64 };

typedef struct {
    int64_t sizes[MOST];
    char path[1000];
} job;

static job jobs[MOST_JOBS];
static int job_count;

static void fail(const char *what) {
    fprintf(stderr, "open_graph: %s: %s\n", what, net_error());
    exit(1);
}

/* Pages for a tensor, with one before and one behind that may not be touched. */
static char *fenced(size_t size, int at_end, char **pages, size_t *whole) {
    const size_t page = 4096, room = (size + page - 1) / page * page;
    char *memory = (char *)mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == (char *)MAP_FAILED || (room != 0 && mprotect(memory + page, room, PROT_READ | PROT_WRITE) != 0)) fail("no memory");
    *pages = memory;
    *whole = room + 2 * page;
    return memory + page + (at_end ? room - size : 0);
}

static void run(net_context *context, const job *one, int number) {
    const net_graph *graph = context == NULL ? NULL : &net_graphs[0];
    void *tensors[MOST];
    char path[1100];
    FILE *file;
    int i, round;
    if (graph == NULL) fail("net_new");
    if (net_resize(context, one->sizes) != 0) {
        if (net_tensors(context) != NULL) fail("tensors of sizes that are refused");
        if (number == 0) printf("%s\n", net_error());
        return;
    }
    for (round = 0; round < 2; round++) {
        const net_tensor *forms = net_tensors(context);
        size_t whole[MOST];
        char *pages[MOST];
        file = fopen(one->path, "rb");
        for (i = 0; i < graph->inputs + graph->outputs; i++) {
            tensors[i] = fenced((size_t)forms[i].bytes, round, &pages[i], &whole[i]);
            if (i < graph->inputs && fread(tensors[i], 1, (size_t)forms[i].bytes, file) != (size_t)forms[i].bytes) fail("the inputs");
        }
        if (fgetc(file) != EOF) fail("more inputs");
        fclose(file);
        if (net_run_graph(context, tensors) != 0) fail("net_run_graph");
        snprintf(path, sizeof path, "%s.out%d", one->path, number);
        file = fopen(path, "wb");
        for (i = graph->inputs; i < graph->inputs + graph->outputs; i++) {
            if (fwrite(tensors[i], 1, (size_t)forms[i].bytes, file) != (size_t)forms[i].bytes) fail("the outputs");
        }
        fclose(file);
        for (i = 0; i < graph->inputs + graph->outputs; i++) munmap(pages[i], whole[i]);
    }
}

static void *caller(void *given) {
    const int number = (int)(intptr_t)given;
    net_context *context = net_new(&net_graphs[0]);
    int i;
    for (i = 0; i < job_count; i++) run(context, &jobs[number == 1 ? job_count - 1 - i : (i + number * job_count / 4) % job_count], number);
    net_free(context);
    return NULL;
}

static int errors(const char *folder) {
    static const int64_t huge[MOST] = {INT64_MAX, INT64_MIN}, least[MOST] = {0};
    const net_graph *graph = &net_graphs[0];
    int64_t sizes[MOST];
    void *tensors[MOST];
    net_context *context;
    net_graph copy = *graph;
    size_t whole;
    char *pages;
    int i;
    memset(tensors, 0, sizeof tensors);
    net_run_at_(NULL, graph, huge, tensors);
    puts(net_error());
    if (net_open(folder) != 0) fail("net_open");
    if (net_new(net_find_graph("no such graph")) != NULL || net_new(&copy) != NULL) fail("net_new");
    puts(net_error());
    net_run_at_(NULL, graph, huge, tensors);
    puts(net_error());
    context = net_new(graph);
    if (net_run_graph(context, tensors) != -1) fail("net_run_graph");
    puts(net_error());
    if (net_resize(context, huge) != -1) fail("net_resize");
    puts(net_error());
    if (net_resize(context, least) != -1) fail("net_resize");
    puts(net_error());
    if (net_resize(context, NULL) != -1) fail("net_resize");
    puts(net_error());
    for (i = 0; i < graph->size_count; i++) sizes[i] = graph->sizes[i].least;
    if (net_resize(context, sizes) != 0) fail("net_resize");
    if (net_run_graph(context, NULL) != -1) fail("net_run_graph");
    puts(net_error());
    for (i = 0; i < graph->inputs + graph->outputs; i++) tensors[i] = fenced((size_t)net_tensors(context)[i].bytes, 0, &pages, &whole);
    net_close();
    if (net_run_graph(context, tensors) != -1) fail("net_run_graph");
    puts(net_error());
    if (net_open(folder) != 0 || net_run_graph(context, tensors) != 0) fail("net_run_graph");
    tensors[0] = (char *)tensors[0] + 1;
    if (net_run_graph(context, tensors) != -1) fail("net_run_graph");
    puts(net_error());
    tensors[0] = tensors[graph->inputs];
    if (net_run_graph(context, tensors) != -1) fail("net_run_graph");
    puts(net_error());
    net_free(context);
    net_free(NULL);
    net_close();
    return 0;
}

int main(int count, char **arguments) {
    pthread_t threads[CALLERS];
    FILE *file;
    int i;
    if (count != 3) return 1;
    if (strcmp(arguments[2], "errors") == 0) return errors(arguments[1]);
    if (net_open(arguments[1]) != 0) fail("net_open");
    file = fopen(arguments[2], "r");
    while (file != NULL && job_count < MOST_JOBS) {
        job *one = &jobs[job_count];
        for (i = 0; i < net_graphs[0].size_count; i++) {
            long long size;
            if (fscanf(file, "%lld", &size) != 1) break;
            one->sizes[i] = size;
        }
        if (i < net_graphs[0].size_count || fscanf(file, "%999s", one->path) != 1) break;
        job_count++;
    }
    if (file == NULL || job_count == 0) fail("no jobs");
    fclose(file);
    for (i = 0; i < CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, caller, (void *)(intptr_t)i) != 0) fail("no thread");
    }
    for (i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    net_close();
    return 0;
}
