/* Runs a graph of a pack, its tensors in memory between pages that nothing may touch: at the end and at the begin of their pages, in
   eight threads at once, each with a context of its own; all results must be the same.

   graph FOLDER GRAPH INPUTS OUTPUTS   the files have the tensors one after another
   graph FOLDER GRAPH errors           say what is wrong with some calls */
#define _DEFAULT_SOURCE
#define NET_IMPLEMENTATION
#include "net.h"

#include <pthread.h>
#include <sys/mman.h>

enum { CALLERS = 8, ROUNDS = 3, MOST = 16 };

static const net_graph *graph;
static char *inputs, *outputs[CALLERS];
static size_t input_bytes, output_bytes;

static void fail(const char *what) {
    fprintf(stderr, "graph: %s: %s\n", what, net_error());
    exit(1);
}

/* Pages for a tensor, with one before and one behind that may not be touched. */
static char *fenced(size_t size, int at_end) {
    const size_t page = 4096, room = (size + page - 1) / page * page;
    char *memory = (char *)mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == (char *)MAP_FAILED || (room != 0 && mprotect(memory + page, room, PROT_READ | PROT_WRITE) != 0)) fail("no memory");
    return memory + page + (at_end ? room - size : 0);
}

static int graph_tensors(const net_graph *some) {
    return some->inputs + some->outputs;
}

static void *caller(void *given) {
    const int number = (int)(intptr_t)given;
    net_context *context = net_new(graph);
    void *tensors[MOST];
    int i, round;
    if (context == NULL) fail("net_new");
    for (round = 0; round < ROUNDS; round++) {
        size_t at = 0;
        char *found = (char *)malloc(output_bytes + 1);
        for (i = 0; i < graph_tensors(graph); i++) {
            tensors[i] = fenced((size_t)graph->tensors[i].bytes, round % 2);
            if (i < graph->inputs) memcpy(tensors[i], inputs + at, (size_t)graph->tensors[i].bytes);
            if (i < graph->inputs) at += (size_t)graph->tensors[i].bytes;
        }
        if (net_run_graph(context, tensors) != 0) fail("net_run_graph");
        for (i = graph->inputs, at = 0; i < graph_tensors(graph); at += (size_t)graph->tensors[i].bytes, i++) {
            memcpy(found + at, tensors[i], (size_t)graph->tensors[i].bytes);
        }
        if (outputs[number] != NULL && memcmp(outputs[number], found, output_bytes) != 0) fail("another result");
        free(outputs[number]);
        outputs[number] = found;
    }
    net_free(context);
    return NULL;
}

static int errors(const char *folder) {
    void *tensors[MOST];
    net_context *context;
    net_graph copy;
    int i;
    memset(tensors, 0, sizeof tensors);
    tensors[0] = tensors;
    net_run_at_(NULL, &net_graphs[0], NULL, tensors);
    puts(net_error());
    if (net_open(folder) != 0) fail("net_open");
    if (net_new(net_find_graph("no such graph")) != NULL) fail("net_new");
    puts(net_error());
    copy = net_graphs[0];
    if (net_new(&copy) != NULL) fail("net_new");
    puts(net_error());
    net_run_at_(NULL, &net_graphs[0], NULL, tensors);
    puts(net_error());
    context = net_new(&net_graphs[0]);
    for (i = 0; i < 3; i++) {
        if (net_run_graph(context, i == 0 ? NULL : tensors) != -1) fail("net_run_graph");
        puts(net_error());
        tensors[0] = (char *)tensors + i;
    }
    for (i = 0; i < graph_tensors(&net_graphs[0]); i++) tensors[i] = fenced((size_t)net_graphs[0].tensors[i].bytes, 0);
    tensors[i - 1] = tensors[0];
    if (net_run_graph(context, tensors) != -1) fail("net_run_graph");
    puts(net_error());
    net_free(context);
    net_close();
    return 0;
}

int main(int count, char **arguments) {
    pthread_t threads[CALLERS];
    FILE *file;
    int i;
    if (count == 4) return errors(arguments[1]);
    if (count != 5 || net_open(arguments[1]) != 0) fail("net_open");
    graph = net_find_graph(arguments[2]);
    if (graph == NULL || graph_tensors(graph) > MOST) fail("no such graph");
    for (i = 0; i < graph_tensors(graph); i++) {
        *(i < graph->inputs ? &input_bytes : &output_bytes) += (size_t)graph->tensors[i].bytes;
    }
    inputs = (char *)malloc(input_bytes + 1);
    file = fopen(arguments[3], "rb");
    if (file == NULL || fread(inputs, 1, input_bytes + 1, file) != input_bytes) fail("the inputs");
    fclose(file);
    for (i = 0; i < CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, caller, (void *)(intptr_t)i) != 0) fail("no thread");
    }
    for (i = 0; i < CALLERS; i++) pthread_join(threads[i], NULL);
    for (i = 1; i < CALLERS; i++) {
        if (memcmp(outputs[0], outputs[i], output_bytes) != 0) fail("threads with other results");
    }
    file = fopen(arguments[4], "wb");
    if (file == NULL || fwrite(outputs[0], 1, output_bytes, file) != output_bytes || fclose(file) != 0) fail("the outputs");
    for (i = 0; i < CALLERS; i++) free(outputs[i]);
    free(inputs);
    net_close();
    return 0;
}
