/* The first library that a stock RPC server of TVM loads: kernels that are tried there get this pool, and the server survives
   whatever they do.

   Such a server starts a process for each session, and stops serving when one of them does not exit normally. Therefore a kernel
   that crashes or hangs here ends the session's process with a normal exit, and the client sees a closed connection. The process
   ends in the same way when its client is gone. */
#include "carried.c" /* the pool */

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The calling convention of functions in a libtvm_ffi library: typed values. */
typedef struct {
    int32_t type;
    uint32_t padding;
    union {
        int64_t integer;
        void **tensor; /* a DLTensor; its first field is the data pointer */
    } as;
} value;

enum { NONE = 0, INTEGER = 1, TENSOR = 7 };

#define FUNCTION(name) EXPORTED int __tvm_ffi_##name(void *self, const value *arguments, int32_t count, value *result)

extern MAYBE int TVMFFIEnvModRegisterContextSymbol(const char *name, void *symbol);

static void end(int signal) {
    (void)signal;
    _exit(0);
}

/* This runs before the other libraries are loaded, and each of them then gets this pool. */
__attribute__((constructor)) static void guard(void) {
    static char stack[1 << 16]; /* the kernel may have overflowed its own stack */
    static const int ends[] = {SIGABRT, SIGALRM, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ};
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_ONSTACK};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) sigaction(ends[i], &action, NULL);
#if defined(__x86_64__) && defined(__linux__)
    syscall(SYS_arch_prctl, 0x1023, 18); /* ARCH_REQ_XCOMP_PERM of tile data: kernels with matrix tiles (AMX) run where it grants it */
#endif
    if (TVMFFIEnvModRegisterContextSymbol)
        TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", (void *)tvmdml_pool_launch);
}

/* arm(seconds): ends the session after so many seconds, unless it is called again before. */
FUNCTION(arm) {
    (void)self;
    if (count == 1 && arguments[0].type == INTEGER) alarm((unsigned)arguments[0].as.integer);
    result->type = NONE;
    return 0;
}

/* limit(threads): sets how many threads kernels may use. */
FUNCTION(limit) {
    (void)self;
    if (count == 1 && arguments[0].type == INTEGER) tvmdml_pool_set_limit((int)arguments[0].as.integer);
    result->type = NONE;
    return 0;
}

static size_t append(char *text, size_t at, size_t size, const char *name) {
    int file = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    while (file >= 0 && at < size && (got = read(file, text + at, size - at)) > 0) at += (size_t)got;
    if (file >= 0) close(file);
    return at;
}

/* describe(bytes, size): writes the number of threads that the pool would use, the group's limit, and /proc/cpuinfo. Returns the
   length. */
FUNCTION(describe) {
    (void)self;
    result->type = INTEGER;
    result->as.integer = 0;
    if (count != 2 || arguments[0].type != TENSOR || arguments[1].type != INTEGER || arguments[1].as.integer < 4096) return 0;
    char *text = *arguments[0].as.tensor;
    size_t size = (size_t)arguments[1].as.integer, at = 0;
    char digits[24];
    int place = sizeof digits;
    for (int threads = threads_wanted(); threads > 0; threads /= 10) digits[--place] = (char)('0' + threads % 10);
    memcpy(text, digits + place, sizeof digits - place);
    at = sizeof digits - place;
    text[at++] = '\n';
    at = append(text, at, size / 2, "/sys/fs/cgroup/cpu.max");
    text[at++] = '\n';
    result->as.integer = (int64_t)append(text, at, size, "/proc/cpuinfo");
    return 0;
}
