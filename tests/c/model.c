/* A program in C that runs an ONNX model of a pack: no Python, no compiler, no library but the pack's own.

   The argument is the folder that the pack's header, libraries and weights were written to:

       tvmdml pack build small.onnx --size batch=1 --target cpu -o small.pack
       tvmdml pack header small.pack -o folder
       cc -std=c99 -I folder -isystem "$(tvm-ffi-config --includedir)" model.c -ldl -o model
       ./model folder

   tvmdml/onnx/README.md makes the model. */
#define SMALL_IMPLEMENTATION /* in one file of a program */
#include "small.h"

int main(int count, char **arguments) {
    const float x[3] = {1, 1, 1};
    float y[2];
    small_context *context = NULL;
    int failed = small_open(count > 1 ? arguments[1] : NULL) != 0;

    if (!failed) context = small_new(small_find_graph("small_batch1"));
    failed = failed || context == NULL || small_graph_small_batch1(context, x, y) != 0;
    if (failed) {
        fprintf(stderr, "model: %s\n", small_error());
    } else {
        printf("%g %g\n", y[0], y[1]);
    }
    small_free(context);
    small_close();
    return failed;
}
