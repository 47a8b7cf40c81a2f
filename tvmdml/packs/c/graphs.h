//@ INCLUDES
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
//@ DECLARATIONS
#define PACK_GRAPHS @GRAPH_COUNT@

/* A size that is open: the least one, or so many steps more. */
typedef struct {
    const char *name;
    int64_t least, most, step;
} pack_size;

typedef struct {
    const char *name;
    const char *function;       /* the name of its function below */
    int32_t size_count;         /* the parameters are the sizes, then the inputs, then the outputs */
    int32_t inputs, outputs;    /* how many it has */
    const pack_size *sizes;
    const pack_tensor *tensors; /* the inputs, then the outputs, in the order of the function's parameters; NULL if sizes are open */
    int64_t memory;             /* the bytes of a context: of the intermediate results of one run; 0 if sizes are open */
} pack_graph;

extern const pack_graph pack_graphs[PACK_GRAPHS];

/* A graph for certain sizes, with memory for its runs, one run at a time. That of a graph without open sizes is ready at once. */
typedef struct pack_context pack_context;

/* The graph with a name, or NULL. */
const pack_graph *pack_find_graph(const char *name);

/* A context for a graph, or NULL on failure. Several threads run a graph at the same time in contexts of their own; they share the
   weights, which are mapped from the .data file that was written with this header. */
pack_context *pack_new(const pack_graph *graph);

/* Free a context. NULL is allowed. */
void pack_free(pack_context *context);

/* Prepare a context for sizes, in the order of the graph's; a graph without open ones takes NULL. A run does so itself when its
   sizes are others than before. */
int pack_resize(pack_context *context, const int64_t *sizes);

/* The inputs and outputs for the sizes that a context is prepared for; NULL if it is for none. They hold until it is prepared for
   others. */
const pack_tensor *pack_tensors(const pack_context *context);

/* Run the graph of a context for the sizes that it is prepared for. No output may share memory with another tensor. Only rows that
   attention keeps may be where those of earlier steps are. */
int pack_run_graph(pack_context *context, void *const *tensors);

/* The same for one graph, and for sizes: a context of another graph is refused. */
int pack_run_at_(pack_context *context, const pack_graph *graph, const int64_t *sizes, void *const *tensors);
int pack_resize_to_(pack_context *context, const pack_graph *graph, const int64_t *sizes);
//@ TABLES

enum { PACK_SIZE_, PACK_NUMBER_, PACK_SUM_, PACK_PRODUCT_, PACK_QUOTIENT_ };
enum { PACK_AT_MOST_ = PACK_QUOTIENT_ + 1, PACK_EQUALS_, PACK_DIFFERS_, PACK_CHOICE_ };

/* A size, by its place; a number, by its place among the numbers; what an operation makes of two earlier values; or what a choice
   makes of a list of earlier values, which has as many as choices take. */
typedef struct {
    int32_t operation, a, b;
} pack_value_;

enum { PACK_ARENA_, PACK_DATA_, PACK_ARRAY_, PACK_GIVEN_ };

/* Where a kernel finds a tensor, or a condition: the offset and the bytes are values. */
typedef struct {
    int32_t slot;
    uint32_t number; /* of the piece, the array or the graph's tensor */
    uint32_t offset, size;
    int64_t base, room; /* of a constant: where it is in the data, and its bytes */
} pack_place_of_;

typedef struct {
    uint32_t group;
    uint32_t places;
    uint32_t place_count;
    uint32_t guards; /* the first of the conditions that must hold: a byte of 0, or another one */
    uint32_t guard_count;
    uint32_t weights; /* the list of its packed weights, by the forms of its group */
} pack_step_;

typedef struct {
    uint32_t place;
    int32_t wanted;
} pack_guard_;

/* An input that a kernel takes packed. */
typedef struct {
    uint32_t argument;
    uint32_t form;
} pack_packing_;

/* A kernel, and the sizes that it serves: lists of values. */
typedef struct {
    uint32_t kernel;
    uint32_t conditions;
    uint32_t scalars;
    uint32_t temporaries; /* the numbers of their elements */
    uint32_t types;       /* the bytes of their elements, among the numbers */
    uint32_t packings;
    uint16_t condition_count, scalar_count, temporary_count, packing_count;
} pack_answer_;

/* The answers for so many threads, or more. */
typedef struct {
    uint32_t threads;
    uint32_t answers; /* a list */
    uint32_t count;
} pack_way_;

typedef struct {
    uint32_t ways;
    uint32_t count;
} pack_group_;

typedef struct {
    DLDataType type;
    int32_t rank;
    int32_t written;
    uint32_t sizes;   /* a list of values */
    uint32_t strides; /* a list of values; an output has none */
    uint32_t bytes;   /* a value: those that a caller gives of an input */
} pack_form_;

/* An array of sizes. */
typedef struct {
    DLDataType type;
    uint32_t elements;
    uint32_t count;
} pack_array_;

/* An output that no kernel writes: a copy of a constant, or of another output. */
typedef struct {
    uint32_t output;
    int32_t slot;
    uint32_t number;
    int64_t base, bytes;
} pack_copy_;

/* What must hold of sizes, in words. */
typedef struct {
    uint32_t value;
    const char *text;
} pack_condition_;

/* A graph for some of its sizes. */
typedef struct {
    uint32_t limits; /* of each size */
    uint32_t values, value_count;
    uint32_t conditions, condition_count;
    uint32_t needed, needed_count; /* a list of values that must be numbers */
    uint32_t forms;
    uint32_t pieces, piece_count; /* the bytes of each: a list of values */
    uint32_t order;               /* a list: of each piece its number, on how many others it lies, and on which */
    uint32_t arrays, array_count;
    uint32_t steps, step_count;
    uint32_t copies, copy_count;
    uint32_t pairs, pair_count; /* a list of inputs and outputs that may be the same memory */
} pack_plan_;

typedef struct {
    uint32_t plans, count;
} pack_plans_of_;

/* How a weight is packed. */
typedef struct {
    DLDataType type;
    int64_t elements;
    int64_t stored;  /* where it is in the data, packed; -1: its packer runs */
    uint32_t inputs; /* where they are in the data, among the numbers */
    uint32_t input_count;
    uint32_t packer; /* its launch */
} pack_weight_;

static const uint32_t pack_lists_[] = {
@LISTS@
};
static const pack_value_ pack_values_[] = {
@VALUES@
};
static const pack_size pack_sizes_[] = {
@SIZES@
};
static const pack_tensor pack_graph_tensors_[] = {
@GRAPH_TENSORS@
};
const pack_graph pack_graphs[PACK_GRAPHS] = {
@GRAPHS@
};
static const pack_plans_of_ pack_plans_of_graphs_[] = {
@PLANS_OF_GRAPHS@
};
static const pack_plan_ pack_plans_[] = {
@PLANS@
};
static const pack_condition_ pack_conditions_[] = {
@CONDITIONS@
};
static const pack_form_ pack_forms_[] = {
@FORMS@
};
static const pack_array_ pack_arrays_[] = {
@ARRAYS@
};
static const pack_place_of_ pack_places_[] = {
@PLACES@
};
static const pack_guard_ pack_guards_[] = {
@GUARDS@
};
static const pack_step_ pack_steps_[] = {
@STEPS@
};
static const pack_copy_ pack_copies_[] = {
@COPIES@
};
static const pack_packing_ pack_packings_[] = {
@PACKINGS@
};
static const pack_answer_ pack_answers_[] = {
@ANSWERS@
};
static const pack_way_ pack_ways_[] = {
@WAYS@
};
static const char *const pack_titles_[] = {
@TITLES@
};
/* Of each level. */
static const pack_group_ pack_groups_[][@GROUP_COUNT@] = {
@GROUP_ROWS@
};
static const pack_launch_ pack_packers_[] = {
@PACKERS@
};
static const pack_weight_ pack_all_weights_[] = {
@ALL_WEIGHTS@
};
static const unsigned char pack_mark_[64] = {
@MARK@
};
//@ MAPPING
enum { PACK_ALIGNMENT_ = 256 };

static struct {
    char *data; /* the file, mapped */
    void *packed[@WEIGHT_COUNT@];
    void *own[@WEIGHT_COUNT@]; /* the memory of those that were packed here */
} pack_held_;

static int pack_call_(const char *name, const pack_launch_ *launch, DLTensor *views, int count);

static int pack_map_(const char *folder) {
    static char path[4096];
    struct stat about;
    void *data = MAP_FAILED;
    int file, length = snprintf(path, sizeof path, "%s/%s", folder, "@DATA@");
    if (length < 0 || (size_t)length >= sizeof path) return pack_fail_("the folder's path is too long");
    file = open(path, O_RDONLY);
    if (file < 0) return pack_fail_("%s: cannot be opened", path);
    if (fstat(file, &about) == 0 && about.st_size == @DATA_BYTES@) data = mmap(NULL, @DATA_BYTES@, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data == MAP_FAILED) return pack_fail_("%s: it cannot be mapped, or does not belong to this header", path);
    pack_held_.data = (char *)data;
    if (memcmp(data, pack_mark_, sizeof pack_mark_) != 0) return pack_fail_("%s: it does not belong to this header", path);
    return 0;
}
//@ WEIGHTS
static int pack_pack_(uint32_t number) {
    static const int64_t one = 1;
    const pack_weight_ *weight = &pack_all_weights_[number];
    DLTensor views[@MOST_TENSORS@ + @MOST_TEMPORARIES@];
    size_t bytes = (size_t)weight->elements * (weight->type.bits / 8);
    char *memory, *packed;
    uint32_t i;
    if (weight->stored >= 0) {
        pack_held_.packed[number] = pack_held_.data + weight->stored;
        return 0;
    }
    memory = (char *)calloc(bytes + PACK_ALIGNMENT_, 1);
    if (memory == NULL) return pack_fail_("no memory for packed weights");
    packed = memory + (PACK_ALIGNMENT_ - (uintptr_t)memory % PACK_ALIGNMENT_);
    memset(views, 0, sizeof views);
    for (i = 0; i <= weight->input_count; i++) {
        views[i].data = i < weight->input_count ? pack_held_.data + pack_numbers_[weight->inputs + i] : packed;
        views[i].device.device_type = kDLCPU;
        views[i].ndim = 1;
        views[i].dtype = weight->type;
        views[i].shape = views[i].strides = (int64_t *)&one;
    }
    if (pack_call_("a packed weight", &pack_packers_[weight->packer], views, (int)i) != 0) {
        free(memory);
        return -1;
    }
    pack_held_.own[number] = memory;
    pack_held_.packed[number] = packed;
    return 0;
}

/* Pack a weight, or find it in the data, unless some thread has done so. */
static int pack_have_(uint32_t number) {
    static char busy;
    int status = 0;
    while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) sched_yield();
    if (pack_held_.packed[number] == NULL) status = pack_pack_(number);
    __atomic_clear(&busy, __ATOMIC_RELEASE);
    return status;
}

static uint32_t pack_times_; /* how often the pack was opened */

static int pack_open_weights_(const char *folder, const pack_level_ *level) {
    (void)level;
    pack_times_++;
    return pack_map_(folder);
}
//@ CLOSING
static void pack_close_weights_(void) {
    int i;
    for (i = 0; i < @WEIGHT_COUNT@; i++) free(pack_held_.own[i]);
    if (pack_held_.data != NULL) munmap(pack_held_.data, @DATA_BYTES@);
    memset(&pack_held_, 0, sizeof pack_held_);
}
//@ RUNS
enum { PACK_MOST_SHOWN_ = 400, PACK_NOT_YET_ = 2 };

static const int64_t PACK_MOST_BYTES_ = (int64_t)1 << 47; /* of an array: more than a process has */

struct pack_context {
    const pack_graph *graph;
    const pack_plan_ *plan; /* for the sizes; NULL if there is none */
    int threads;            /* that kernels were chosen for */
    uint32_t times;         /* of which opening its weights are */
    char *own, *memory;     /* what was allocated, and where the arena begins in it */
    size_t room;
    char *arrays, *temporaries;
    int64_t sizes[@MOST_SIZES@];
    int64_t values[@MOST_VALUES@];
    signed char known[@MOST_VALUES@]; /* 1: a number; 0: none, as it divides by 0; -1: it has more than 64 bits */
    int64_t offsets[@MOST_PIECES@];
    int64_t starts[@MOST_ARRAYS@];
    const pack_answer_ *answers[@GROUP_COUNT@];
    pack_tensor tensors[@MOST_GIVEN@];
    int64_t forms[@MOST_DIMENSIONS@]; /* the sizes and strides of the tensors */
};

const pack_graph *pack_find_graph(const char *name) {
    int i;
    for (i = 0; name != NULL && i < PACK_GRAPHS; i++) {
        if (strcmp(name, pack_graphs[i].name) == 0) return &pack_graphs[i];
    }
    return NULL;
}

pack_context *pack_new(const pack_graph *graph) {
    intptr_t number = ((intptr_t)graph - (intptr_t)pack_graphs) / (intptr_t)sizeof *graph;
    pack_context *context;
    if (graph == NULL || number < 0 || number >= PACK_GRAPHS || graph != &pack_graphs[number]) {
        if (graph != NULL) pack_fail_("the graph is not one of this header's");
        else pack_fail_("no graph was given, or none has the name: this header has %d, the first is %s", PACK_GRAPHS,
                        pack_graphs[0].name);
        return NULL;
    }
    context = (pack_context *)calloc(1, sizeof *context);
    if (context == NULL) {
        pack_fail_("%s: no memory for a context", graph->function);
        return NULL;
    }
    context->graph = graph;
    if (graph->size_count == 0 && pack_state_.level != NULL && pack_resize(context, NULL) != 0) {
        pack_free(context);
        return NULL;
    }
    return context;
}

void pack_free(pack_context *context) {
    if (context != NULL) free(context->own);
    free(context);
}

const pack_tensor *pack_tensors(const pack_context *context) {
    return context == NULL || context->plan == NULL ? NULL : context->tensors;
}

/* Sizes in words: "batch=2, length=3"; or what is allowed, if none are given: "batch=1..3, length=4..16:4". */
static const char *pack_shown_(const pack_graph *graph, const int64_t *sizes, char *text) {
    int i, at = 0;
    text[0] = '\0';
    for (i = 0; i < graph->size_count && at < PACK_MOST_SHOWN_; i++) {
        const pack_size *size = &graph->sizes[i];
        at += snprintf(text + at, (size_t)(PACK_MOST_SHOWN_ - at), "%s%s=%lld", i == 0 ? "" : ", ", size->name,
                       (long long)(sizes == NULL ? size->least : sizes[i]));
        if (sizes != NULL || at >= PACK_MOST_SHOWN_) continue;
        at += snprintf(text + at, (size_t)(PACK_MOST_SHOWN_ - at), "..%lld", (long long)size->most);
        if (size->step > 1 && size->least < size->most && at < PACK_MOST_SHOWN_)
            at += snprintf(text + at, (size_t)(PACK_MOST_SHOWN_ - at), ":%lld", (long long)size->step);
    }
    return text;
}

static int pack_allows_(const pack_size *size, int64_t value) {
    return value >= size->least && value <= size->most && (value - size->least) % size->step == 0;
}

/* Compute a value of the context's plan, once. Returns what is known of it. */
static int pack_compute_(pack_context *context, uint32_t number) {
    const pack_value_ *row = &pack_values_[context->plan->values + number];
    const int operation = row->operation;
    int64_t given[@MOST_CHOICE@], a, b, value = 0;
    int known = 1;
    if (context->known[number] != PACK_NOT_YET_) return context->known[number];
    if (operation == PACK_CHOICE_) {
        const uint32_t *list = &pack_lists_[row->b];
        uint32_t k;
        for (k = 0; k < list[0] && known == 1; k++) {
            known = pack_compute_(context, list[k + 1]);
            given[k] = context->values[list[k + 1]];
        }
        if (known == 1 && !pack_choose_(row->a, given, &value)) known = -1;
    } else if (operation <= PACK_NUMBER_) {
        value = operation == PACK_SIZE_ ? context->sizes[row->a] : pack_numbers_[row->a];
    } else {
        known = pack_compute_(context, (uint32_t)row->a);
        if (known == 1) known = pack_compute_(context, (uint32_t)row->b);
        a = context->values[row->a];
        b = context->values[row->b];
        if (known != 1) {
            value = 0;
        } else if (operation == PACK_SUM_) {
            if (__builtin_add_overflow(a, b, &value)) known = -1;
        } else if (operation == PACK_PRODUCT_) {
            if (__builtin_mul_overflow(a, b, &value)) known = -1;
        } else if (operation == PACK_QUOTIENT_) {
            if (b == 0 || (b == -1 && a == INT64_MIN)) known = b == 0 ? 0 : -1;
            else value = a / b - (a % b != 0 && (a % b < 0) != (b < 0)); /* rounded down */
        } else {
            value = operation == PACK_AT_MOST_ ? a <= b : operation == PACK_EQUALS_ ? a == b : a != b;
        }
    }
    context->values[number] = value;
    context->known[number] = (signed char)known;
    return known;
}

/* Whether values are numbers, and no conditions that do not hold. */
static int pack_are_known_(pack_context *context, uint32_t list, uint32_t count, int conditions) {
    uint32_t i;
    for (i = 0; i < count; i++) {
        uint32_t value = pack_lists_[list + i];
        if (pack_compute_(context, value) != 1 || (conditions && context->values[value] == 0)) return 0;
    }
    return 1;
}

/* Find the plan that was built for sizes. */
static int pack_choose_plan_(pack_context *context) {
    const pack_graph *graph = context->graph;
    const int64_t *sizes = context->sizes;
    const pack_plans_of_ *several = &pack_plans_of_graphs_[graph - pack_graphs];
    const char *failed = NULL;
    char shown[PACK_MOST_SHOWN_], allowed[PACK_MOST_SHOWN_];
    uint32_t p, i;
    int k;
    for (k = 0; k < graph->size_count; k++) {
        if (!pack_allows_(&graph->sizes[k], sizes[k]))
            return pack_fail_("%s: given %s=%lld; allowed: %s", graph->function, graph->sizes[k].name, (long long)sizes[k],
                              pack_shown_(graph, NULL, allowed));
    }
    for (p = 0; p < several->count; p++) {
        const pack_plan_ *plan = &pack_plans_[several->plans + p];
        int inside = 1;
        for (k = 0; k < graph->size_count; k++) inside = inside && pack_allows_(&pack_sizes_[plan->limits + (uint32_t)k], sizes[k]);
        if (!inside) continue;
        context->plan = plan;
        memset(context->known, PACK_NOT_YET_, plan->value_count);
        for (failed = NULL, i = 0; i < plan->condition_count && failed == NULL; i++) {
            const pack_condition_ *condition = &pack_conditions_[plan->conditions + i];
            const int known = pack_compute_(context, condition->value);
            if (known < 0) failed = "numbers of 64 bits";
            else if (known == 0 || context->values[condition->value] == 0) failed = condition->text;
        }
        for (i = 0; i < plan->needed_count && failed == NULL; i++) {
            const int known = pack_compute_(context, pack_lists_[plan->needed + i]);
            if (known != 1) failed = known < 0 ? "numbers of 64 bits" : "divisors that are not 0";
        }
        if (failed == NULL) return 0;
    }
    if (failed == NULL) failed = "those that it was built for";
    return pack_fail_("%s: given %s; allowed: %s, with %s", graph->function, pack_shown_(graph, sizes, shown),
                      pack_shown_(graph, NULL, allowed), failed);
}

/* The kernel of each launch. */
static int pack_choose_kernels_(pack_context *context) {
    const pack_group_ *groups = pack_groups_[pack_state_.level - pack_levels_];
    const pack_plan_ *plan = context->plan;
    char shown[PACK_MOST_SHOWN_];
    uint32_t s, i;
    context->threads = pack_threads(0);
    for (s = 0; s < plan->step_count; s++) {
        const uint32_t number = pack_steps_[plan->steps + s].group;
        const pack_group_ *group = &groups[number];
        const pack_answer_ *chosen = NULL;
        uint32_t w = group->count;
        while (chosen == NULL && w-- > 0) { /* the answers for fewer threads serve more, too: results have the same bits */
            const pack_way_ *way = &pack_ways_[group->ways + w];
            if (w > 0 && way->threads > (uint32_t)context->threads) continue;
            for (i = 0; i < way->count && chosen == NULL; i++) {
                const pack_answer_ *answer = &pack_answers_[pack_lists_[way->answers + i]];
                if (pack_are_known_(context, answer->conditions, answer->condition_count, 1) &&
                    pack_are_known_(context, answer->scalars, answer->scalar_count, 0) &&
                    pack_are_known_(context, answer->temporaries, answer->temporary_count, 0))
                    chosen = answer;
            }
        }
        if (chosen == NULL && context->graph->size_count == 0)
            return pack_fail_("%s: the pack has no kernel of %s for %s", context->graph->function, pack_titles_[number],
                              pack_state_.level->name);
        if (chosen == NULL)
            return pack_fail_("%s: given %s, for which the pack lacks a kernel of %s on %s; allowed: sizes that it was built for. "
                              "Build it again for these, or for a smaller range.",
                              context->graph->function, pack_shown_(context->graph, context->sizes, shown), pack_titles_[number],
                              pack_state_.level->name);
        context->answers[number] = chosen;
    }
    return 0;
}

/* The bytes of a tensor, from its first element to its last one, or -1. Its sizes and strides are written into its form. */
static int64_t pack_form_of_(const pack_context *context, const pack_form_ *form, int64_t *sizes, int64_t *strides) {
    const int64_t bytes = form->type.bits / 8;
    int64_t elements = 1, span = 1, part;
    int i;
    for (i = 0; i < form->rank; i++) sizes[i] = context->values[pack_lists_[form->sizes + (uint32_t)i]];
    for (i = form->rank - 1; i >= 0; i--) {
        if (sizes[i] < 0) return -1;
        strides[i] = form->written ? elements : context->values[pack_lists_[form->strides + (uint32_t)i]];
        if (strides[i] < 0 || (!form->written && strides[i] % bytes != 0)) return -1;
        if (!form->written) strides[i] /= bytes;
        if (__builtin_mul_overflow(elements, sizes[i], &elements) || elements > PACK_MOST_BYTES_) return -1;
        if (sizes[i] > 0 && (__builtin_mul_overflow(sizes[i] - 1, strides[i], &part) || __builtin_add_overflow(span, part, &span)))
            return -1;
    }
    return elements == 0 ? 0 : span > PACK_MOST_BYTES_ / bytes ? -1 : span * bytes;
}

static int pack_form_all_(pack_context *context) {
    const pack_graph *graph = context->graph;
    int64_t *at = context->forms;
    int i;
    for (i = 0; i < graph->inputs + graph->outputs; i++) {
        const pack_form_ *form = &pack_forms_[context->plan->forms + (uint32_t)i];
        pack_tensor *tensor = &context->tensors[i];
        tensor->type = form->type;
        tensor->rank = form->rank;
        tensor->written = form->written;
        tensor->bytes = pack_form_of_(context, form, at, at + form->rank);
        tensor->sizes = at;
        tensor->strides = at + form->rank;
        if (tensor->bytes < 0 || (!form->written && context->values[form->bytes] < tensor->bytes)) return -1;
        at += 2 * form->rank;
    }
    return 0;
}

/* Whether a part of memory lies inside of it. */
static int pack_is_inside_(const pack_context *context, const pack_place_of_ *place) {
    const int64_t begin = context->values[place->offset], size = context->values[place->size];
    int64_t room = place->room;
    if (place->slot == PACK_ARENA_) room = context->values[pack_lists_[context->plan->pieces + place->number]];
    if (place->slot == PACK_GIVEN_) room = context->tensors[place->number].bytes;
    return begin >= 0 && size >= 0 && size <= room && begin <= room - size;
}

static int64_t pack_rounded_(int64_t bytes) {
    return (bytes + PACK_ALIGNMENT_ - 1) / PACK_ALIGNMENT_ * PACK_ALIGNMENT_;
}

/* Give each piece of intermediate memory its place, behind all on which it lies. Returns the bytes in all, or -1. */
static int64_t pack_stack_(pack_context *context) {
    const pack_plan_ *plan = context->plan;
    const uint32_t *row = &pack_lists_[plan->order];
    int64_t most = 0;
    uint32_t i, k;
    for (i = 0; i < plan->piece_count; i++, row += 2 + row[1]) {
        int64_t at = 0, size = context->values[pack_lists_[plan->pieces + row[0]]];
        if (size < 0 || size > PACK_MOST_BYTES_) return -1;
        for (k = 0; k < row[1]; k++) {
            const uint32_t below = row[2 + k];
            int64_t end = context->offsets[below] + pack_rounded_(context->values[pack_lists_[plan->pieces + below]]);
            if (end > at) at = end;
        }
        context->offsets[row[0]] = at;
        if (at + pack_rounded_(size) > most) most = at + pack_rounded_(size);
        if (most > PACK_MOST_BYTES_) return -1;
    }
    return most;
}

/* The bytes of the temporaries of a launch, each from a cache line on; or -1. */
static int64_t pack_room_of_(const pack_context *context, const pack_answer_ *answer) {
    int64_t bytes = 0;
    int i;
    for (i = 0; i < answer->temporary_count; i++) {
        const int64_t count = context->values[pack_lists_[answer->temporaries + (uint32_t)i]];
        const int64_t size = pack_numbers_[answer->types + (uint32_t)i];
        if (count < 0 || count > PACK_MOST_BYTES_ / size) return -1;
        bytes += (count * size + PACK_LINE_ - 1) / PACK_LINE_ * PACK_LINE_;
        if (bytes > PACK_MOST_BYTES_) return -1;
    }
    return bytes;
}

/* Write an array of sizes. */
static int pack_write_(const pack_context *context, const pack_array_ *array, char *memory) {
    const int bits = array->type.bits, is_signed = array->type.code == kDLInt, bytes = bits / 8;
    uint32_t i;
    for (i = 0; i < array->count; i++) {
        int64_t value = context->values[pack_lists_[array->elements + i]];
        char *to = memory + (size_t)i * (size_t)bytes;
        if (array->type.code == kDLFloat) {
            const float narrow = (float)value;
            const double wide = (double)value;
            memcpy(to, bits == 32 ? (const void *)&narrow : (const void *)&wide, (size_t)bytes);
            continue;
        }
        if (array->type.code == kDLBool) value = value != 0;
        if (!is_signed && value < 0) return -1;
        if (bits < 64 && (value >= (int64_t)1 << (bits - is_signed) || value < -((int64_t)1 << (bits - 1)))) return -1;
        if (bits == 8) {
            *to = (char)value;
        } else if (bits == 16) {
            const int16_t own = (int16_t)value;
            memcpy(to, &own, sizeof own);
        } else if (bits == 32) {
            const int32_t own = (int32_t)value;
            memcpy(to, &own, sizeof own);
        } else {
            memcpy(to, &value, sizeof value);
        }
    }
    return 0;
}

/* Check what a plan says of memory, and provide it. */
static int pack_provide_(pack_context *context) {
    const pack_plan_ *plan = context->plan;
    const char *name = context->graph->function;
    int64_t arena, arrays = 0, temporaries = 0, total;
    uint32_t i, k;
    if (pack_form_all_(context) != 0) return pack_fail_("%s: the header is damaged: tensors of impossible sizes", name);
    arena = pack_stack_(context);
    for (i = 0; i < plan->step_count; i++) {
        const pack_step_ *step = &pack_steps_[plan->steps + i];
        const int64_t own = pack_room_of_(context, context->answers[step->group]);
        for (k = 0; k < step->place_count + step->guard_count; k++) {
            if (!pack_is_inside_(context, &pack_places_[step->places + k]))
                return pack_fail_("%s: the header is damaged: %s goes beyond the end of an array", name, pack_titles_[step->group]);
        }
        if (own < 0) arena = -1;
        if (own > temporaries) temporaries = own;
        for (k = 0; k < context->answers[step->group]->packing_count; k++) {
            const pack_packing_ *packing = &pack_packings_[context->answers[step->group]->packings + k];
            if (pack_have_(pack_lists_[step->weights + packing->form]) != 0) return -1;
        }
    }
    for (i = 0; i < plan->copy_count; i++) {
        const pack_copy_ *copy = &pack_copies_[plan->copies + i];
        if (context->tensors[copy->output].bytes != (copy->slot == PACK_DATA_ ? copy->bytes : context->tensors[copy->number].bytes))
            return pack_fail_("%s: the header is damaged: an output of other bytes than what it copies", name);
    }
    for (i = 0; i < plan->array_count; i++) {
        const pack_array_ *array = &pack_arrays_[plan->arrays + i];
        context->starts[i] = arrays;
        arrays += pack_rounded_((int64_t)array->count * (array->type.bits / 8));
    }
    if (arena < 0) return pack_fail_("%s: these sizes need more memory than there is", name);
    total = arena + arrays + temporaries + PACK_ALIGNMENT_;
    if ((size_t)total > context->room) {
        free(context->own);
        context->room = 0;
        context->own = (char *)malloc((size_t)total);
        if (context->own == NULL) return pack_fail_("%s: no memory for a context of %lld bytes", name, (long long)total);
        context->room = (size_t)total;
        context->memory = context->own + (PACK_ALIGNMENT_ - (uintptr_t)context->own % PACK_ALIGNMENT_);
    }
    context->arrays = context->memory + arena;
    context->temporaries = context->arrays + arrays;
    for (i = 0; i < plan->array_count; i++) {
        if (pack_write_(context, &pack_arrays_[plan->arrays + i], context->arrays + context->starts[i]) != 0)
            return pack_fail_("%s: these sizes do not fit in the type of an array", name);
    }
    return 0;
}

static int pack_is_for_(const pack_context *context, const pack_graph *graph) {
    if (pack_state_.level == NULL) {
        pack_fail_("no pack is open: call pack_open first");
        return 0;
    }
    if (context == NULL) {
        pack_fail_("%s: no context was given", graph->function);
        return 0;
    }
    if (context->graph != graph) pack_fail_("%s: the context is of %s", graph->function, context->graph->function);
    return context->graph == graph;
}

int pack_resize_to_(pack_context *context, const pack_graph *graph, const int64_t *sizes) {
    const size_t bytes = (size_t)graph->size_count * sizeof *sizes;
    if (!pack_is_for_(context, graph)) return -1;
    if (sizes == NULL && graph->size_count == 0) sizes = context->sizes;
    if (sizes == NULL) return pack_fail_("%s: no sizes were given", graph->function);
    if (context->plan != NULL && context->threads == pack_threads(0) && context->times == pack_times_ &&
        memcmp(context->sizes, sizes, bytes) == 0)
        return 0;
    context->times = pack_times_;
    context->plan = NULL;
    memmove(context->sizes, sizes, bytes);
    if (pack_choose_plan_(context) == 0 && pack_choose_kernels_(context) == 0 && pack_provide_(context) == 0) return 0;
    context->plan = NULL;
    return -1;
}

int pack_resize(pack_context *context, const int64_t *sizes) {
    return context == NULL ? pack_fail_("no context was given") : pack_resize_to_(context, context->graph, sizes);
}

/* Where a tensor or a condition begins. */
static char *pack_address_(const pack_context *context, const pack_place_of_ *place, void *const *tensors) {
    const int64_t offset = context->values[place->offset];
    if (place->slot == PACK_ARENA_) return context->memory + context->offsets[place->number] + offset;
    if (place->slot == PACK_ARRAY_) return context->arrays + context->starts[place->number] + offset;
    return (place->slot == PACK_DATA_ ? pack_held_.data + place->base : (char *)tensors[place->number]) + offset;
}

/* Whether a step is to run. The first guard that does not hold ends the search: later ones may not have been computed. */
static int pack_holds_(const pack_context *context, const pack_step_ *step, void *const *tensors) {
    uint32_t i;
    for (i = 0; i < step->guard_count; i++) {
        const pack_guard_ *guard = &pack_guards_[step->guards + i];
        if ((*pack_address_(context, &pack_places_[guard->place], tensors) != 0) != guard->wanted) return 0;
    }
    return 1;
}

static int pack_step_on_(const pack_context *context, const pack_step_ *step, void *const *tensors) {
    static const int64_t one = 1;
    const pack_answer_ *answer = context->answers[step->group];
    const uint32_t given = step->place_count, count = given + answer->temporary_count;
    TVMFFIAny arguments[@MOST_ARGUMENTS@], result;
    DLTensor views[@MOST_VIEWS@];
    char *room = context->temporaries;
    uint32_t i;
    memset(views, 0, count * sizeof *views);
    memset(arguments, 0, (count + answer->scalar_count) * sizeof *arguments);
    memset(&result, 0, sizeof result);
    for (i = 0; i < count; i++) {
        if (i < given) {
            views[i].data = pack_address_(context, &pack_places_[step->places + i], tensors);
        } else {
            const int64_t elements = context->values[pack_lists_[answer->temporaries + i - given]];
            const int64_t bytes = elements * pack_numbers_[answer->types + i - given];
            views[i].data = room;
            room += (bytes + PACK_LINE_ - 1) / PACK_LINE_ * PACK_LINE_;
        }
        views[i].device.device_type = kDLCPU; /* kernels read the address, and nothing else */
        views[i].ndim = 1;
        views[i].dtype.bits = 8;
        views[i].dtype.lanes = 1;
        views[i].shape = views[i].strides = (int64_t *)&one;
        arguments[i].type_index = kTVMFFIDLTensorPtr;
        arguments[i].v_ptr = &views[i];
    }
    for (i = 0; i < answer->packing_count; i++) {
        const pack_packing_ *packing = &pack_packings_[answer->packings + i];
        views[packing->argument].data = pack_held_.packed[pack_lists_[step->weights + packing->form]];
    }
    for (i = 0; i < answer->scalar_count; i++) {
        arguments[count + i].type_index = kTVMFFIInt;
        arguments[count + i].v_int64 = context->values[pack_lists_[answer->scalars + i]];
    }
    if (pack_state_.kernels[answer->kernel](NULL, arguments, (int32_t)(count + answer->scalar_count), &result) == 0) return 0;
    return pack_fail_("%s: the kernel of %s failed", context->graph->function, pack_titles_[step->group]);
}

int pack_run_at_(pack_context *context, const pack_graph *graph, const int64_t *sizes, void *const *tensors) {
    const pack_plan_ *plan;
    uint32_t k;
    if (pack_resize_to_(context, graph, sizes) != 0) return -1;
    plan = context->plan;
    if (pack_check_(graph->function, context->tensors, graph->inputs + graph->outputs, tensors, &pack_lists_[plan->pairs],
                    plan->pair_count) != 0)
        return -1;
    for (k = 0; k < plan->step_count; k++) {
        const pack_step_ *step = &pack_steps_[plan->steps + k];
        if (pack_holds_(context, step, tensors) && pack_step_on_(context, step, tensors) != 0) return -1;
    }
    for (k = 0; k < plan->copy_count; k++) {
        const pack_copy_ *copy = &pack_copies_[plan->copies + k];
        const char *base = copy->slot == PACK_DATA_ ? pack_held_.data + copy->base : (const char *)tensors[copy->number];
        memcpy(tensors[copy->output], base, (size_t)context->tensors[copy->output].bytes);
    }
    return 0;
}

int pack_run_graph(pack_context *context, void *const *tensors) {
    if (context == NULL) return pack_fail_("no context was given");
    if (context->plan == NULL && context->graph->size_count != 0)
        return pack_fail_("%s: the context has no sizes: call pack_resize first", context->graph->function);
    return pack_run_at_(context, context->graph, context->sizes, tensors);
}
