/* What a stock RPC server loads, called as such a server calls it; built with a sanitizer, which says what is wrong.
   Signals end a process that has it as if all were well, so what it prints last says whether it came to its end. */
#include "guard.c"

#include <assert.h>
#include <stdio.h>

enum { TASKS = 1000, ROOM = 5000 };

static int task(int number, pool_group *group, void *data) {
    assert(group->count == TASKS);
    ((char *)data)[number]++;
    return number == 500 && ((char *)data)[TASKS] ? -1 : 0;
}

static void launch(int fails) {
    char runs[TASKS + 1] = {0};
    runs[TASKS] = (char)fails;
    assert(tvmdml_pool_launch(task, runs, TASKS) == (fails ? -1 : 0));
    for (int i = 0; i < TASKS && !fails; i++) assert(runs[i] == 1);
}

static int64_t describe(char *bytes, int64_t size) {
    void *tensor = bytes; /* a DLTensor begins with where its data are */
    value arguments[] = {{.type = TENSOR, .as.tensor = &tensor}, {.type = INTEGER, .as.integer = size}}, result;
    assert(__tvm_ffi_describe(NULL, arguments, 2, &result) == 0 && result.type == INTEGER);
    return result.as.integer;
}

int main(void) {
    assert(__TVMBackendParallelLaunch == (void *)tvmdml_pool_launch);
    for (int limit = 1; limit <= 8; limit *= 2) {
        value argument = {.type = INTEGER, .as.integer = limit}, result;
        assert(__tvm_ffi_limit(NULL, &argument, 1, &result) == 0 && result.type == NONE);
        assert(tvmdml_pool_set_limit(0) == limit);
        for (int i = 0; i < 20; i++) launch(i % 5 == 4);
    }
    for (int seconds = 100; seconds >= 0; seconds -= 100) {
        value argument = {.type = INTEGER, .as.integer = seconds}, result;
        assert(__tvm_ffi_arm(NULL, &argument, 1, &result) == 0 && result.type == NONE);
    }
    static const char *const wanted[] = {"3", "256", "0", "", "-1", "x", "3 ", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        setenv("TVMDML_NUM_THREADS", wanted[i], 1);
        for (int64_t size = 0; size <= ROOM; size += size < 4095 ? 4095 : 1) { /* the last byte is the last of the memory */
            char *bytes = malloc((size_t)size + 1);
            bytes[size] = 7;
            int64_t written = describe(bytes, size);
            assert(size < 4096 ? written == 0 : written > 4 && written <= size);
            assert(bytes[size] == 7 && (i > 0 || size < 4096 || memcmp(bytes, "3\n", 2) == 0));
            free(bytes);
        }
    }
    puts("all was well");
    return 0;
}
