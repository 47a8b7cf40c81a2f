"""The C code that headers of packs with open sizes have besides, but for what runs: see ``_header_c``.

What follows from sizes is a table of values, each computed from earlier ones, where ``pack_compute_`` needs it.
"""

DECLARATIONS = r"""#define PACK_GRAPHS @GRAPH_COUNT@

/* A size that is open: the least one, or so many steps more. */
typedef struct {
    const char *name;
    int64_t least, most, step;
} pack_size;

typedef struct {
    const char *name;
    const char *function;   /* the name of its function below */
    int32_t size_count;     /* the parameters are the sizes, then the inputs, then the outputs */
    int32_t inputs, outputs;
    const pack_size *sizes;
} pack_graph;

extern const pack_graph pack_graphs[PACK_GRAPHS];

/* A graph for certain sizes, with memory for its runs, one run at a time. */
typedef struct pack_context pack_context;

/* The graph with a name, or NULL. */
const pack_graph *pack_find_graph(const char *name);

/* A context for a graph, or NULL on failure. Several threads run a graph at the same time in contexts of their own; they share the
   weights, which are mapped from the .data file that was written with this header. */
pack_context *pack_new(const pack_graph *graph);

/* Free a context. NULL is allowed. */
void pack_free(pack_context *context);

/* Prepare a context for sizes, in the order of the graph's. A run does so itself when its sizes are others than before. */
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
"""

TABLES = r"""
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
"""

WEIGHTS = r"""static int pack_pack_(uint32_t number) {
    static const int64_t one = 1;
    const pack_weight_ *weight = &pack_all_weights_[number];
    DLTensor views[@MOST_TENSORS@ + @MOST_TEMPORARIES@];
    size_t bytes = (size_t)weight->elements * (weight->type.bits / 8);
    char *memory = (char *)calloc(bytes + PACK_ALIGNMENT_, 1), *packed;
    uint32_t i;
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
    if (pack_call_("a packed weight", &pack_packers_[weight->packer], views, (int)i, NULL) != 0) {
        free(memory);
        return -1;
    }
    pack_held_.own[number] = memory;
    pack_held_.packed[number] = packed;
    return 0;
}

/* Pack a weight, unless some thread has done so. */
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
"""
