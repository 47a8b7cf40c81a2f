/* Operators of DirectML, compiled for CPUs. Written by tvmdml @VERSION@; do not edit.

   One file of a program, in C99 or C++11, defines PACK_IMPLEMENTATION before it includes this header. It needs the headers of
   apache-tvm-ffi (`tvm-ffi-config --includedir`), found through -isystem, and with glibc before 2.34 -ldl and -lpthread.

   A function of an operation returns 0, or -1 on failure; pack_error then returns the message. Its tensors must have the layout
   in the descriptor above the function, elements in the platform's byte order (uint16_t has the bits of a float16), and the
   alignment of their elements; NULL and less aligned ones are refused. An output must not share memory with another tensor: that is
   refused, too, if neither has gaps between its elements. When pack_open has returned, any number of threads may call functions
   at the same time. */
#ifndef PACK_H_
#define PACK_H_

#include <stdint.h>
#include <tvm/ffi/c_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PACK_OPERATIONS @COUNT@

typedef struct {
    DLDataType type;
    int32_t rank;
    int32_t written; /* an output */
    const int64_t *sizes;
    const int64_t *strides; /* in elements */
    int64_t bytes;          /* from the start of the first element to the end of the last */
} pack_tensor;

typedef struct {
    const char *descriptor; /* in the form of a spec */
    const char *function;   /* the name of its function below */
    int32_t count;          /* the number of its tensors, which are in the order of the function's parameters */
    const pack_tensor *tensors;
} pack_operation;

/* Sorted by descriptor. */
extern const pack_operation pack_operations[@OPERATION_ROWS@];

/* Open the libraries that were written with this header, for the best processor level that the pack has and that runs here. The
   folder NULL is the working directory. Call this before anything else, in one thread, and again only while no operation runs. */
int pack_open(const char *folder);

/* Close the libraries. No operation may run. */
void pack_close(void);

/* The last error of this thread. */
const char *pack_error(void);

/* The name of the chosen processor level, such as "x86-64-v3"; "" if nothing is open. */
const char *pack_level(void);

/* Set how many threads work on an operation from now on; 0 does not change it. Returns the number of threads. At first, that is
   TVMDML_NUM_THREADS, or the number of processors; it is 1 if no operation of the pack runs in parallel. */
int pack_threads(int limit);

/* The operation with a descriptor, or NULL. */
const pack_operation *pack_find(const char *descriptor);

/* Run an operation on its tensors. */
int pack_run(const pack_operation *operation, void *const *tensors);

@GRAPH_DECLARATIONS@
@FUNCTIONS@

#ifdef __cplusplus
}
#endif
#endif

/* -- The implementation ---------------------------------------------------------------------------------------------- */

#if defined(PACK_IMPLEMENTATION) && !defined(PACK_IMPLEMENTED_)
#define PACK_IMPLEMENTED_

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
@GRAPH_INCLUDES@
#ifdef __cplusplus
extern "C" {
#endif

/* The file with the processor's features. */
#ifndef PACK_CPUINFO
#define PACK_CPUINFO "/proc/cpuinfo"
#endif

#if defined(__x86_64__)
#define PACK_MACHINE_ "x86_64"
#elif defined(__aarch64__)
#define PACK_MACHINE_ "aarch64"
#else
#define PACK_MACHINE_ "another machine"
#endif

enum { PACK_LINE_ = 64 }; /* bytes of a cache line, to which temporaries are aligned */

typedef struct {
    DLDataType type;
    int64_t count;
} pack_temporary_;

typedef struct {
    uint32_t threads; /* the least number of threads for this launch */
    uint32_t kernel;
    uint32_t scalars;
    uint32_t temporaries;
    uint16_t scalar_count;
    uint16_t temporary_count;
} pack_launch_;

typedef struct {
    uint16_t library;
    const char *symbol;
} pack_kernel_;

typedef struct {
    const char *name;
    const char *machine;
    const char *features; /* as named in /proc/cpuinfo */
    const uint32_t *launches;
    const uint16_t *libraries;
    uint32_t library_count;
} pack_level_;

static const int64_t pack_numbers_[] = {
@NUMBERS@
};
static const pack_tensor pack_tensors_[] = {
@TENSORS@
};
const pack_operation pack_operations[@OPERATION_ROWS@] = {
@OPERATIONS@
};
static const char *const pack_libraries_[] = {
@LIBRARIES@
};
static const pack_kernel_ pack_kernels_[] = {
@KERNELS@
};
static const pack_temporary_ pack_temporaries_[] = {
@TEMPORARIES@
};
static const pack_launch_ pack_launches_[] = {
@LAUNCHES@
};
@TABLES@
@GRAPH_TABLES@
static const pack_level_ pack_levels_[] = {
@LEVELS@
};

static struct {
    const pack_level_ *level; /* NULL: nothing is open */
    int (*set_limit)(int);    /* of the thread pool; NULL if no operation is parallel */
    void *libraries[@LIBRARY_COUNT@];
    TVMFFISafeCallType kernels[@KERNEL_COUNT@];
} pack_state_;

static __thread char pack_error_[1024];

const char *pack_error(void) {
    return pack_error_;
}

__attribute__((format(printf, 1, 2))) static int pack_fail_(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(pack_error_, sizeof pack_error_, format, arguments);
    va_end(arguments);
    return -1;
}

/* Whether a line contains all of some words. */
static int pack_has_(const char *line, const char *words) {
    while (*words != '\0') {
        size_t length = strcspn(words, " ");
        const char *at = line;
        for (;;) {
            at += strspn(at, " \t\n");
            if (*at == '\0') return 0;
            if (strcspn(at, " \t\n") == length && strncmp(at, words, length) == 0) break;
            at += strcspn(at, " \t\n");
        }
        words += length;
        words += strspn(words, " ");
    }
    return 1;
}

/* Read the line with the processor's features; it is empty if the system does not report them. */
static void pack_read_features_(char *line, int size) {
    FILE *file = fopen(PACK_CPUINFO, "r");
    line[0] = '\0';
    if (file == NULL) return;
    while (fgets(line, size, file) != NULL) {
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) break;
        line[0] = '\0';
    }
    fclose(file);
}

/* Whether the system lets this process use the features: it has to be asked for matrix tiles (AMX). */
static int pack_permits_(const char *features) {
#if defined(__x86_64__) && defined(__linux__)
    long result = 158; /* arch_prctl(ARCH_REQ_XCOMP_PERM, tile data) */
    if (pack_has_(features, "amx_tile")) {
        __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
        return result == 0;
    }
#endif
    (void)features;
    return 1;
}

static const pack_level_ *pack_best_level_(void) {
    char features[16384];
    int i;
    pack_read_features_(features, sizeof features);
    for (i = 0; i < @LEVEL_COUNT@; i++) {
        const pack_level_ *level = &pack_levels_[i];
        if (strcmp(level->machine, PACK_MACHINE_) == 0 && pack_has_(features, level->features) &&
            pack_permits_(level->features))
            return level;
    }
    pack_fail_("this processor (%s) is not one of those that the pack was built for: @LEVEL_NAMES@", PACK_MACHINE_);
    return NULL;
}

/* Open a library, and make it use the thread pool of the first library that has one. */
static int pack_open_library_(const char *folder, uint16_t number, void **pool) {
    static char path[4096];
    void *library, *launch;
    int length = snprintf(path, sizeof path, "%s/%s", folder, pack_libraries_[number]);
    if (length < 0 || (size_t)length >= sizeof path) return pack_fail_("the folder's path is too long");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return pack_fail_("%s", dlerror());
    pack_state_.libraries[number] = library;
    launch = dlsym(library, "tvmdml_pool_launch");
    if (launch == NULL) return 0;
    if (*pool == NULL) {
        void *set_limit = dlsym(library, "tvmdml_pool_set_limit");
        if (set_limit == NULL) return pack_fail_("%s: it is not a library of a pack", path);
        memcpy(&pack_state_.set_limit, &set_limit, sizeof set_limit);
        *pool = launch;
    }
    library = dlsym(library, "__TVMBackendParallelLaunch");
    if (library == NULL) return pack_fail_("%s: it is not a library of a pack", path);
    memcpy(library, pool, sizeof *pool);
    return 0;
}

static int pack_open_level_(const char *folder, const pack_level_ *level) {
    void *pool = NULL;
    uint32_t i;
    for (i = 0; i < level->library_count; i++) {
        if (pack_open_library_(folder, level->libraries[i], &pool) != 0) return -1;
    }
    for (i = 0; i < @KERNEL_COUNT@; i++) {
        const pack_kernel_ *kernel = &pack_kernels_[i];
        void *library = pack_state_.libraries[kernel->library], *symbol;
        if (library == NULL) continue; /* only other levels use it */
        symbol = dlsym(library, kernel->symbol);
        if (symbol == NULL) return pack_fail_("a library does not belong to this header: %s", dlerror());
        memcpy(&pack_state_.kernels[i], &symbol, sizeof symbol);
    }
    pack_state_.level = level;
    return 0;
}

@GRAPH_MAPPING@
@GRAPH_WEIGHTS@
@GRAPH_CLOSING@
int pack_open(const char *folder) {
    const pack_level_ *level = pack_best_level_();
    pack_close();
    if (level == NULL) return -1;
    if (folder == NULL) folder = ".";
    if (pack_open_level_(folder, level) == 0@OPEN_WEIGHTS@) return 0;
    pack_close();
    return -1;
}

void pack_close(void) {
    int i;
@CLOSE_WEIGHTS@    for (i = 0; i < @LIBRARY_COUNT@; i++) {
        if (pack_state_.libraries[i] != NULL) dlclose(pack_state_.libraries[i]);
    }
    memset(&pack_state_, 0, sizeof pack_state_);
}

const char *pack_level(void) {
    return pack_state_.level == NULL ? "" : pack_state_.level->name;
}

int pack_threads(int limit) {
    return pack_state_.set_limit == NULL ? 1 : pack_state_.set_limit(limit < 0 ? 1 : limit);
}

const pack_operation *pack_find(const char *descriptor) {
    int low = 0, high = descriptor == NULL ? 0 : PACK_OPERATIONS;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(descriptor, pack_operations[middle].descriptor);
        if (order == 0) return &pack_operations[middle];
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

/* Place the temporaries in memory, or only compute their size if it is NULL. Returns the size in bytes. */
static size_t pack_place_(const pack_launch_ *launch, DLTensor *views, char *memory) {
    static const int64_t one = 1;
    size_t at = 0;
    int i;
    for (i = 0; i < launch->temporary_count; i++) {
        const pack_temporary_ *temporary = &pack_temporaries_[launch->temporaries + i];
        memset(&views[i], 0, sizeof views[i]);
        views[i].data = memory == NULL ? NULL : memory + at;
        views[i].device.device_type = kDLCPU;
        views[i].ndim = 1;
        views[i].dtype = temporary->type;
        views[i].shape = (int64_t *)&temporary->count;
        views[i].strides = (int64_t *)&one;
        at += ((size_t)temporary->count * (temporary->type.bits / 8) + PACK_LINE_ - 1) / PACK_LINE_ * PACK_LINE_;
    }
    return at;
}

/* Launch a kernel on views, which have room for its temporaries behind them. */
static int pack_call_(const char *name, const pack_launch_ *launch, DLTensor *views, int count) {
    TVMFFIAny arguments[@MOST_ARGUMENTS@], result;
    char *memory = NULL;
    int i, status;
    if (launch->temporary_count != 0) {
        memory = (char *)malloc(pack_place_(launch, views + count, NULL) + PACK_LINE_);
        if (memory == NULL) return pack_fail_("%s: no memory for its temporaries", name);
        pack_place_(launch, views + count, memory + (PACK_LINE_ - (uintptr_t)memory % PACK_LINE_));
    }
    count += launch->temporary_count;
    memset(&result, 0, sizeof result);
    for (i = 0; i < count; i++) {
        arguments[i].type_index = kTVMFFIDLTensorPtr;
        arguments[i].zero_padding = 0;
        arguments[i].v_ptr = &views[i];
    }
    for (i = 0; i < launch->scalar_count; i++) {
        arguments[count + i].type_index = kTVMFFIInt;
        arguments[count + i].zero_padding = 0;
        arguments[count + i].v_int64 = pack_numbers_[launch->scalars + i];
    }
    status = pack_state_.kernels[launch->kernel](NULL, arguments, count + launch->scalar_count, &result);
    free(memory);
    return status == 0 ? 0 : pack_fail_("%s: the kernel failed", name);
}

static void pack_view_(DLTensor *view, const pack_tensor *tensor, void *data) {
    view->data = data;
    view->device.device_type = kDLCPU;
    view->device.device_id = 0;
    view->ndim = tensor->rank;
    view->dtype = tensor->type;
    view->shape = (int64_t *)tensor->sizes;
    view->strides = (int64_t *)tensor->strides;
    view->byte_offset = 0;
}

/* The launch of the operation with this number for the number of threads, or NULL. */
static const pack_launch_ *pack_launch_of_(uint32_t number, const char *name) {
    const pack_launch_ *launch, *end;
    uint32_t limit;
    if (pack_state_.level == NULL) {
        pack_fail_("no pack is open: call pack_open first");
        return NULL;
    }
    launch = &pack_launches_[pack_state_.level->launches[number]];
    end = &pack_launches_[pack_state_.level->launches[number + 1]];
    if (launch == end) {
        pack_fail_("%s: the pack has no kernel of it for %s", name, pack_state_.level->name);
        return NULL;
    }
    limit = (uint32_t)pack_threads(0);
    while (launch + 1 < end && launch[1].threads <= limit) launch++;
    return launch;
}

static int pack_has_gaps_(const pack_tensor *tensor) {
    int64_t bytes = (tensor->type.bits + 7) / 8;
    int i;
    for (i = 0; i < tensor->rank; i++) bytes *= tensor->sizes[i];
    return bytes != tensor->bytes;
}

/* Whether two tensors surely have elements in the same memory: those of one may be in the gaps of the other. */
static int pack_share_(const pack_tensor *one, const char *begin, const pack_tensor *other, const char *other_begin) {
    if (begin >= other_begin + other->bytes || other_begin >= begin + one->bytes) return 0;
    return begin == other_begin || (!pack_has_gaps_(one) && !pack_has_gaps_(other));
}

/* Pairs of tensors that may be the same memory: the first is read, and the second written. */
static int pack_may_share_(const uint32_t *pairs, uint32_t pair_count, int first, int second) {
    uint32_t i;
    for (i = 0; i < pair_count; i++) {
        if (pairs[2 * i] == (uint32_t)first && pairs[2 * i + 1] == (uint32_t)second) return 1;
    }
    return 0;
}

/* Refuse tensors that kernels cannot use. */
static int pack_check_(const char *name, const pack_tensor *tensors, int count, void *const *given, const uint32_t *pairs,
                       uint32_t pair_count) {
    int i, k;
    if (given == NULL) return pack_fail_("%s: no tensors were given", name);
    for (i = 0; i < count; i++) {
        if (given[i] == NULL) return pack_fail_("%s: tensor %d is NULL", name, i);
        if ((uintptr_t)given[i] % (tensors[i].type.bits / 8) != 0)
            return pack_fail_("%s: tensor %d is not aligned to its elements", name, i);
        for (k = 0; k < i; k++) {
            if (given[i] == given[k] && pack_may_share_(pairs, pair_count, k, i)) continue;
            if ((tensors[i].written || tensors[k].written) &&
                pack_share_(&tensors[i], (const char *)given[i], &tensors[k], (const char *)given[k]))
                return pack_fail_("%s: tensors %d and %d are in the same memory, and one is written", name, k, i);
        }
    }
    return 0;
}

int pack_run(const pack_operation *operation, void *const *tensors) {
    DLTensor views[@MOST_TENSORS@ + @MOST_TEMPORARIES@];
    const pack_launch_ *launch;
    intptr_t number;
    int i;
    if (pack_state_.level == NULL) return pack_fail_("no pack is open: call pack_open first");
    if (operation == NULL) return pack_fail_("no operation was given");
    number = ((intptr_t)operation - (intptr_t)pack_operations) / (intptr_t)sizeof *operation;
    if (number < 0 || number >= PACK_OPERATIONS || operation != &pack_operations[number])
        return pack_fail_("the operation is not one of this header's");
    launch = pack_launch_of_((uint32_t)number, operation->function);
    if (launch == NULL) return -1;
    if (pack_check_(operation->function, operation->tensors, operation->count, tensors, NULL, 0) != 0) return -1;
    for (i = 0; i < operation->count; i++) pack_view_(&views[i], &operation->tensors[i], tensors[i]);
    return pack_call_(operation->function, launch, views, operation->count);
}

@GRAPH_RUNS@
#ifdef __cplusplus
}
#endif
#endif
