/* A program in C that runs a pack's kernels: no Python, no compiler, no library but the pack's own.

   The argument is the folder that the pack's header and libraries were written to (by default the current one):

       tvmdml pack header ops.tvmdml -o folder
       cc -std=c99 -I folder -isystem "$(tvm-ffi-config --includedir)" example.c -ldl -o example
       ./example folder

   tvmdml/packs/README.md builds the pack that it takes. */
#define OPS_IMPLEMENTATION /* in one file of a program */
#include "ops.h"

static int failed(void) {
    fprintf(stderr, "example: %s\n", ops_error());
    return 1;
}

int main(int count, char **arguments) {
    static float scores[4 * 1000], best[4 * 3];
    static uint32_t where[4 * 3];
    const ops_operation *rounding;
    int i;

    if (ops_open(count > 1 ? arguments[1] : NULL) != 0) return failed();

    /* An operation that the program knows has a function. */
    for (i = 0; i < 4 * 1000; i++) scores[i] = (float)((i * 7919) % 10007) / 8;
    if (ops_top_k1_f32_4x1000_axis1_k3_decreasing(scores, best, where) != 0) return failed();
    for (i = 0; i < 4 * 3; i++) printf("%g at %u\n", best[i], (unsigned)where[i]);

    /* One that it comes to know later is found by its descriptor. This one is in place: its only tensor is read and written. */
    rounding = ops_find(
        "{ operator = \"ELEMENT_WISE_ROUND\", InputTensor = \"float32[4, 3]\", OutputTensor = \"float32[4, 3]\", "
        "RoundingMode = \"HALVES_TO_NEAREST_EVEN\", in_place = true }");
    if (rounding != NULL) {
        void *tensors[] = {best};
        if (ops_run(rounding, tensors) != 0) return failed();
        for (i = 0; i < 4 * 3; i++) printf("%g\n", best[i]);
    }
    ops_close();
    return 0;
}
