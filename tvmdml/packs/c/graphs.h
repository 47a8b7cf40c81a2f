//@ INCLUDES
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
//@ DECLARATIONS
#define PACK_GRAPHS @GRAPH_COUNT@

typedef struct {
    const char *name;
    const char *function;       /* the name of its function below */
    int32_t inputs, outputs;    /* how many it has */
    const pack_tensor *tensors; /* the inputs, then the outputs, in the order of the function's parameters */
    int64_t memory;             /* the bytes of a context: of the intermediate results of one run */
} pack_graph;

extern const pack_graph pack_graphs[PACK_GRAPHS];

/* Memory for the runs of a graph, one run at a time. */
typedef struct pack_context pack_context;

/* The graph with a name, or NULL. */
const pack_graph *pack_find_graph(const char *name);

/* A context for a graph, or NULL on failure. Several threads run a graph at the same time in contexts of their own; they share the
   weights, which are mapped from the .data file that was written with this header. */
pack_context *pack_new(const pack_graph *graph);

/* Free a context. NULL is allowed. */
void pack_free(pack_context *context);

/* Run the graph of a context. No output may share memory with another tensor. */
int pack_run_graph(pack_context *context, void *const *tensors);

/* The same, for one graph: a context of another one is refused. */
int pack_run_in_(pack_context *context, const pack_graph *graph, void *const *tensors);
//@ TABLES

typedef struct {
    uint32_t tensor;   /* among the operation's */
    DLDataType type;
    int64_t elements;
    uint32_t inputs;   /* what the packer reads, among the operation's tensors */
    uint32_t input_count;
    uint32_t packer;   /* its launch */
} pack_packing_;

/* Where a kernel finds a tensor. */
typedef struct {
    int32_t slot;   /* PACK_ARENA_, PACK_DATA_, or PACK_GIVEN_ and the place among the graph's tensors */
    int32_t weight; /* its number among the packed weights, for kernels that take it packed; or -1 */
    int64_t offset; /* bytes; -1: it is there packed only */
} pack_place_of_;

enum { PACK_ARENA_, PACK_DATA_, PACK_GIVEN_ };

/* What must be so if a step is to run: a byte of 0, or another one. */
typedef struct {
    int32_t slot;
    int32_t wanted;
    int64_t offset;
} pack_guard_;

typedef struct {
    uint32_t operation;
    uint32_t places;
    uint32_t guards;
    uint32_t guard_count;
} pack_step_;

/* An output that no kernel writes: a copy of a constant, or of another output. */
typedef struct {
    int32_t output; /* among the graph's tensors */
    int32_t slot;
    int64_t offset;
    int64_t bytes;
} pack_copy_;

typedef struct {
    uint32_t steps;
    uint32_t step_count;
    uint32_t copies;
    uint32_t copy_count;
    int64_t arena;
} pack_plan_;

static const pack_packing_ pack_packings_[] = {
@PACKINGS@
};
static const pack_launch_ pack_packers_[] = {
@PACKERS@
};
/* The operations with packed inputs, which only graphs run. */
static const pack_operation pack_more_operations_[] = {
@MORE_OPERATIONS@
};
static const pack_tensor pack_graph_tensors_[] = {
@GRAPH_TENSORS@
};
const pack_graph pack_graphs[PACK_GRAPHS] = {
@GRAPHS@
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
static const pack_plan_ pack_plans_[] = {
@PLANS@
};
/* The steps that read the packed weights, one for each. */
static const uint32_t pack_weight_steps_[] = {
@WEIGHT_STEPS@
};
/* Where the packed weights are in the data, by level; -1: the kernel that packs them runs when the pack is opened. */
static const int64_t pack_weights_[][@WEIGHT_COUNT@] = {
@WEIGHTS@
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

static size_t pack_place_(const pack_launch_ *launch, DLTensor *views, char *memory);
static int pack_call_(const char *name, const pack_launch_ *launch, DLTensor *views, int count, void *given);

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
static void pack_view_(DLTensor *view, const pack_tensor *tensor, void *data);
static const pack_launch_ *pack_launch_of_(uint32_t number, const char *name);

static const pack_operation *pack_operation_of_(uint32_t number) {
    return @OPERATION_OF@;
}

static int pack_pack_(int weight) {
    DLTensor views[@MOST_TENSORS@ + @MOST_TEMPORARIES@];
    const pack_step_ *step = &pack_steps_[pack_weight_steps_[weight]];
    const pack_place_of_ *places = &pack_places_[step->places];
    const pack_operation *operation = pack_operation_of_(step->operation);
    const pack_launch_ *launch = pack_launch_of_(step->operation, operation->function);
    uint32_t i, k, count;
    if (launch == NULL) return 0; /* a run of the graph says so */
    for (i = 0; i < launch->packing_count; i++) {
        const pack_packing_ *packing = &pack_packings_[launch->packings + i];
        static const int64_t one = 1;
        size_t bytes;
        char *memory;
        if (places[packing->tensor].weight != weight) continue;
        for (count = 0; count < packing->input_count; count++) {
            k = (uint32_t)pack_numbers_[packing->inputs + count];
            pack_view_(&views[count], &operation->tensors[k], pack_held_.data + places[k].offset);
        }
        bytes = (size_t)packing->elements * (packing->type.bits / 8);
        memory = (char *)calloc(bytes + PACK_ALIGNMENT_, 1);
        if (memory == NULL) return pack_fail_("%s: no memory for packed weights", operation->function);
        pack_held_.own[weight] = memory;
        pack_held_.packed[weight] = memory + (PACK_ALIGNMENT_ - (uintptr_t)memory % PACK_ALIGNMENT_);
        memset(&views[count], 0, sizeof views[count]);
        views[count].data = pack_held_.packed[weight];
        views[count].device.device_type = kDLCPU;
        views[count].ndim = 1;
        views[count].dtype = packing->type;
        views[count].shape = (int64_t *)&packing->elements;
        views[count].strides = (int64_t *)&one;
        return pack_call_(operation->function, &pack_packers_[packing->packer], views, (int)count + 1, NULL);
    }
    return 0; /* this level's kernel takes it as it is */
}

static int pack_open_weights_(const char *folder, const pack_level_ *level) {
    const int64_t *stored = pack_weights_[level - pack_levels_];
    int i;
    if (pack_map_(folder) != 0) return -1;
    for (i = 0; i < @OWN_WEIGHTS@; i++) {
        if (stored[i] >= 0) {
            pack_held_.packed[i] = pack_held_.data + stored[i];
        } else if (pack_pack_(i) != 0) {
            return -1;
        }
    }
    return 0;
}
//@ CLOSING
static void pack_close_weights_(void) {
    int i;
    for (i = 0; i < @WEIGHT_COUNT@; i++) free(pack_held_.own[i]);
    if (pack_held_.data != NULL) munmap(pack_held_.data, @DATA_BYTES@);
    memset(&pack_held_, 0, sizeof pack_held_);
}
//@ RUNS
struct pack_context {
    const pack_graph *graph;
    char *arena;
    char *temporaries; /* of one launch */
};

const pack_graph *pack_find_graph(const char *name) {
    int i;
    for (i = 0; name != NULL && i < PACK_GRAPHS; i++) {
        if (strcmp(name, pack_graphs[i].name) == 0) return &pack_graphs[i];
    }
    return NULL;
}

pack_context *pack_new(const pack_graph *graph) {
    const size_t head = (sizeof(pack_context) + PACK_ALIGNMENT_ - 1) / PACK_ALIGNMENT_ * PACK_ALIGNMENT_;
    pack_context *context;
    intptr_t number = ((intptr_t)graph - (intptr_t)pack_graphs) / (intptr_t)sizeof *graph;
    char *memory;
    if (graph == NULL || number < 0 || number >= PACK_GRAPHS || graph != &pack_graphs[number]) {
        if (graph != NULL) pack_fail_("the graph is not one of this header's");
        else pack_fail_("no graph was given, or none has the name: this header has %d, the first is %s", PACK_GRAPHS,
                        pack_graphs[0].name);
        return NULL;
    }
    memory = (char *)malloc(head + (size_t)graph->memory + PACK_ALIGNMENT_);
    if (memory == NULL) {
        pack_fail_("%s: no memory for a context of %lld bytes", graph->function, (long long)graph->memory);
        return NULL;
    }
    context = (pack_context *)memory;
    context->graph = graph;
    context->arena = memory + head + (PACK_ALIGNMENT_ - ((uintptr_t)memory + head) % PACK_ALIGNMENT_);
    context->temporaries = context->arena + pack_plans_[number].arena;
    return context;
}

void pack_free(pack_context *context) {
    free(context);
}

static char *pack_base_(const pack_context *context, int32_t slot, void *const *tensors) {
    if (slot == PACK_ARENA_) return context->arena;
    return slot == PACK_DATA_ ? pack_held_.data : (char *)tensors[slot - PACK_GIVEN_];
}

/* Whether a step is to run. The first guard that does not hold ends the search: later ones may not have been computed. */
static int pack_holds_(const pack_context *context, const pack_step_ *step, void *const *tensors) {
    uint32_t i;
    for (i = 0; i < step->guard_count; i++) {
        const pack_guard_ *guard = &pack_guards_[step->guards + i];
        const char *byte = pack_base_(context, guard->slot, tensors) + guard->offset;
        if ((*byte != 0) != guard->wanted) return 0;
    }
    return 1;
}

static int pack_step_on_(const pack_context *context, const pack_step_ *step, void *const *tensors) {
    DLTensor views[@MOST_TENSORS@ + @MOST_TEMPORARIES@];
    const pack_operation *operation = pack_operation_of_(step->operation);
    const pack_place_of_ *places = &pack_places_[step->places];
    const pack_launch_ *launch = pack_launch_of_(step->operation, operation->function);
    static const int64_t one = 1;
    int i;
    if (launch == NULL) return -1;
    for (i = 0; i < operation->count; i++) {
        pack_view_(&views[i], &operation->tensors[i], pack_base_(context, places[i].slot, tensors) + places[i].offset);
    }
    for (i = 0; i < launch->packing_count; i++) {
        const pack_packing_ *packing = &pack_packings_[launch->packings + i];
        DLTensor *view = &views[packing->tensor];
        view->data = pack_held_.packed[places[packing->tensor].weight];
        view->ndim = 1;
        view->dtype = packing->type;
        view->shape = (int64_t *)&packing->elements;
        view->strides = (int64_t *)&one;
    }
    return pack_call_(operation->function, launch, views, operation->count, context->temporaries);
}

int pack_run_graph(pack_context *context, void *const *tensors) {
    return context == NULL ? pack_fail_("no context was given") : pack_run_in_(context, context->graph, tensors);
}

int pack_run_in_(pack_context *context, const pack_graph *graph, void *const *tensors) {
    const pack_plan_ *plan = &pack_plans_[graph - pack_graphs];
    uint32_t k;
    if (pack_state_.level == NULL) return pack_fail_("no pack is open: call pack_open first");
    if (context == NULL) return pack_fail_("%s: no context was given", graph->function);
    if (context->graph != graph) return pack_fail_("%s: the context is of %s", graph->function, context->graph->function);
    if (pack_check_(graph->function, graph->tensors, graph->inputs + graph->outputs, tensors, NULL, 0) != 0) return -1;
    for (k = 0; k < plan->step_count; k++) {
        const pack_step_ *step = &pack_steps_[plan->steps + k];
        if (pack_holds_(context, step, tensors) && pack_step_on_(context, step, tensors) != 0) return -1;
    }
    for (k = 0; k < plan->copy_count; k++) {
        const pack_copy_ *copy = &pack_copies_[plan->copies + k];
        const char *base = copy->slot == PACK_DATA_ ? pack_held_.data : (const char *)tensors[copy->slot - PACK_GIVEN_];
        memcpy(tensors[copy->output], base + copy->offset, (size_t)copy->bytes);
    }
    return 0;
}
