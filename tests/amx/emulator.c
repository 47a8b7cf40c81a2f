/* AMX on processors without it: the instructions raise SIGILL, and a handler does what they would do.

   Tiles are in memory of the thread. Whatever a processor would refuse ends the process with a message: tiles that are not
   configured, shapes that do not fit each other, the same tile twice. Forms that no kernel uses are refused, too. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, BYTES = 64, CODE = 16 };

typedef struct {
    int on;
    int rows[TILES], bytes[TILES];
    uint8_t data[TILES][ROWS][BYTES];
} tiles;

static __thread tiles *own __attribute__((tls_model("initial-exec"))); /* a signal handler must not allocate thread-local memory */
static atomic_long configured, done, products[5];
static struct sigaction before;

static void stop(const char *what) {
    static const char start[] = "AMX emulator: ", end[] = "\n";
    if (write(2, start, sizeof start - 1) < 0 || write(2, what, strlen(what)) < 0 || write(2, end, 1) < 0) _exit(3);
    abort();
}

static tiles *mine(void) {
    if (own == NULL) {
        own = mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED) stop("no memory");
    }
    return own;
}

static tiles *ready(int tile) {
    tiles *t = mine();
    if (!t->on) stop("a tile is used before tiles are configured in this thread");
    if (t->rows[tile] == 0) stop("a tile is used that is not configured");
    return t;
}

static void release(void) {
    tiles *t = mine();
    if (t->on) atomic_fetch_sub(&configured, 1);
    memset(t, 0, sizeof *t);
}

static void configure(const uint8_t *from) {
    uint8_t text[64];
    memcpy(text, from, sizeof text);
    release();
    if (text[0] == 0) return;
    if (text[0] != 1) stop("an unknown palette");
    for (int i = 1; i < 64; i++)
        if (((i < 16) || (i >= 32 && i < 48) || i >= 56) && text[i] != 0) stop("reserved bytes of a configuration are not 0");
    tiles *t = mine();
    for (int i = 0; i < TILES; i++) {
        t->rows[i] = text[48 + i];
        t->bytes[i] = text[16 + 2 * i] | text[17 + 2 * i] << 8;
        if (t->rows[i] > ROWS || t->bytes[i] > BYTES || (t->rows[i] == 0) != (t->bytes[i] == 0)) stop("a tile that is too large");
    }
    t->on = 1;
    atomic_fetch_add(&configured, 1);
}

static void fits(tiles *t, int to, int a, int b) {
    ready(a), ready(b);
    if (to == a || to == b || a == b) stop("a tile is given twice");
    if (t->bytes[to] != t->bytes[b] || t->rows[to] != t->rows[a] || t->bytes[a] != 4 * t->rows[b] || t->bytes[b] % 4)
        stop("tiles that are multiplied do not fit");
}

static void multiply(int to, int a, int b, int a_signed, int b_signed) {
    tiles *t = ready(to);
    fits(t, to, a, b);
    for (int m = 0; m < t->rows[to]; m++)
        for (int n = 0; n < t->bytes[to] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &t->data[to][m][4 * n], 4);
            for (int k = 0; k < t->bytes[a]; k++) {
                uint8_t x = t->data[a][m][k], y = t->data[b][k / 4][4 * n + k % 4];
                sum += (uint32_t)((a_signed ? (int8_t)x : (int)x) * (b_signed ? (int8_t)y : (int)y));
            }
            memcpy(&t->data[to][m][4 * n], &sum, 4);
        }
    atomic_fetch_add(&products[2 * a_signed + b_signed], 1);
}

static float half_word(const uint8_t *from) {
    uint32_t bits = (uint32_t)(from[0] | from[1] << 8) << 16;
    float value;
    if ((bits & 0x7F800000) == 0) bits &= 0x80000000; /* subnormal numbers count as 0 */
    memcpy(&value, &bits, 4);
    return value;
}

/* Products of even places and of odd ones are summed apart. */
static void multiply_halves(int to, int a, int b) {
    tiles *t = ready(to);
    fits(t, to, a, b);
    for (int m = 0; m < t->rows[to]; m++)
        for (int n = 0; n < t->bytes[to] / 4; n++) {
            float sum, parts[2] = {0, 0};
            memcpy(&sum, &t->data[to][m][4 * n], 4);
            for (int k = 0; k < t->bytes[a] / 2; k++)
                parts[k % 2] = fmaf(half_word(&t->data[a][m][2 * k]), half_word(&t->data[b][k / 2][4 * n + 2 * (k % 2)]), parts[k % 2]);
            sum += parts[0] + parts[1];
            memcpy(&t->data[to][m][4 * n], &sum, 4);
        }
    atomic_fetch_add(&products[4], 1);
}

static int64_t general(const ucontext_t *context, int number) {
    static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[places[number]];
}

/* Where an operand in memory is: `step` is the index register's part, from row to row of a tile. */
static uint8_t *operand(const ucontext_t *context, const uint8_t *code, int *length, int64_t *step) {
    int index_high = !(code[1] & 0x40), base_high = !(code[1] & 0x20);
    int mod = code[4] >> 6, rm = code[4] & 7, at = 5;
    int64_t address = 0;
    int32_t far;
    *step = 0;
    if (rm == 4) {
        int scale = code[at] >> 6, index = (code[at] >> 3 & 7) | index_high << 3, base = code[at] & 7;
        at++;
        if (index != 4) *step = general(context, index) * (1 << scale);
        if (base == 5 && mod == 0) mod = 2; /* no base register, and four bytes */
        else address = general(context, base | base_high << 3);
    } else if (mod == 0 && rm == 5) {
        memcpy(&far, code + at, 4);
        *length = at + 4;
        return (uint8_t *)(context->uc_mcontext.gregs[REG_RIP] + *length + far);
    } else address = general(context, rm | base_high << 3);
    if (mod == 1) address += (int8_t)code[at++];
    if (mod == 2) {
        memcpy(&far, code + at, 4);
        address += far;
        at += 4;
    }
    *length = at;
    return (uint8_t *)address;
}

/* The length of the instruction, which is done; 0 if it is none of AMX. */
static int run(const ucontext_t *context, const uint8_t *code) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || code[2] & 0x84) return 0; /* map 0F38, W 0, 128 bits */
    int prefix = code[2] & 3, third = ~code[2] >> 3 & 15, length = 5;
    int in_memory = code[4] >> 6 != 3, reg = code[4] >> 3 & 7, rm = code[4] & 7;
    int64_t step;
    switch (code[3]) {
    case 0x49:
        if (prefix == 0 && in_memory) {
            const uint8_t *at = operand(context, code, &length, &step);
            configure(at + step);
        }
        else if (prefix == 0 && code[4] == 0xC0) release();
        else if (prefix == 3 && !in_memory && rm == 0) memset(ready(reg)->data[reg], 0, ROWS * BYTES);
        else return 0;
        return length;
    case 0x4B: {
        if (!in_memory || rm != 4 || prefix == 0) return 0;
        tiles *t = ready(reg);
        uint8_t *at = operand(context, code, &length, &step);
        if (prefix != 2) memset(t->data[reg], 0, ROWS * BYTES);
        for (int row = 0; row < t->rows[reg]; row++) {
            if (prefix == 2) memcpy(at + row * step, t->data[reg][row], (size_t)t->bytes[reg]);
            else memcpy(t->data[reg][row], at + row * step, (size_t)t->bytes[reg]);
        }
        return length;
    }
    case 0x5C:
        if (in_memory || third > 7 || prefix != 2) return 0;
        multiply_halves(reg, rm, third);
        return length;
    case 0x5E:
        if (in_memory || third > 7) return 0;
        multiply(reg, rm, third, prefix >= 2, prefix == 1 || prefix == 3);
        return length;
    default: return 0;
    }
}

static void handle(int number, siginfo_t *info, void *given) {
    ucontext_t *context = given;
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    int length = run(context, code);
    (void)info;
    if (length == 0) {
        sigaction(number, &before, NULL); /* what was there before sees the same instruction again */
        return;
    }
    atomic_fetch_add(&done, 1);
    context->uc_mcontext.gregs[REG_RIP] += length;
}

void amx_install(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGILL, &action, &before);
}

void amx_remove(void) {
    sigaction(SIGILL, &before, NULL);
}

/* How many threads have tiles configured, how many instructions were done, and how many products of the signs `kind`: 2 if the
   first tile's bytes are signed, 1 more if the second one's are; 4 of bfloat16. */
long amx_configured(void) {
    return configured;
}

long amx_done(void) {
    return done;
}

long amx_products(int kind) {
    return products[kind];
}
