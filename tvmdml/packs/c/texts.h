//@ DECLARATIONS

/* The most tokens of a text, and the number of tokens that there are. */
#define PACK_TEXT_LENGTH @TEXT_LENGTH@
#define PACK_VOCABULARY @VOCABULARY@

/* A text: what the model keeps of its tokens, and memory for a run. */
typedef struct pack_text pack_text;

/* An empty text, or NULL on failure. Several threads go on with texts of their own at the same time, and share the weights. */
pack_text *pack_text_new(void);

/* Free a text. NULL is allowed. */
void pack_text_free(pack_text *text);

/* Go on with a prompt, or with one token. Writes the logits of what comes after the last one: PACK_VOCABULARY numbers. If it fails,
   the text is as before. */
int pack_step(pack_text *text, const int64_t *tokens, int64_t count, float *logits);

/* How many tokens a text has. */
int64_t pack_text_count(const pack_text *text);

/* Forget all tokens after the first ones. */
int pack_text_rewind(pack_text *text, int64_t count);
//@ TABLES

enum { PACK_TOKENS_, PACK_MASK_, PACK_PLACES_, PACK_KEPT_ };

/* What each input is: a kind, and of one that is kept the place of the output that becomes it. */
static const int32_t pack_roles_[][2] = {
@ROLES@
};
//@ RUNS

enum { PACK_LOGITS_ = @LOGITS@ };

struct pack_text {
    pack_context *context;
    int64_t count;
    void *tensors[@MOST_GIVEN@];
    size_t room[@MOST_GIVEN@];
};

static int pack_is_kept_(const pack_graph *graph, int tensor) {
    int i;
    if (tensor < graph->inputs) return pack_roles_[tensor][0] == PACK_KEPT_;
    for (i = 0; i < graph->inputs; i++) {
        if (pack_roles_[i][0] == PACK_KEPT_ && pack_roles_[i][1] == tensor) return 1;
    }
    return 0;
}

/* Whether the model's tensors are those of a text: what the pack says of itself is not believed. */
static int pack_text_fits_(const pack_tensor *tensors, int64_t count) {
    const pack_tensor *logits = &tensors[PACK_LOGITS_];
    int i, fits = logits->type.code == kDLFloat && logits->rank > 0 && logits->sizes[logits->rank - 1] >= PACK_VOCABULARY;
    for (i = 0; i < pack_graphs[0].inputs; i++) {
        const pack_tensor *tensor = &tensors[i];
        const int64_t least = pack_roles_[i][0] == PACK_MASK_ ? PACK_TEXT_LENGTH : count;
        if (pack_roles_[i][0] == PACK_KEPT_) {
            fits = fits && tensor->bytes == tensors[pack_roles_[i][1]].bytes;
            continue;
        }
        fits = fits && tensor->type.code == kDLInt && tensor->type.bits >= 32;
        fits = fits && tensor->bytes / (tensor->type.bits / 8) >= least;
    }
    return fits ? 0 : pack_fail_("pack_step: the header is damaged: its model does not take a text");
}

/* Memory for a run of so many tokens. */
static int pack_text_room_(pack_text *text, int64_t count) {
    const pack_graph *graph = &pack_graphs[0];
    const pack_tensor *tensors;
    int i, total = graph->inputs + graph->outputs;
    if (pack_resize_to_(text->context, graph, &count) != 0) return -1;
    tensors = pack_tensors(text->context);
    if (pack_text_fits_(tensors, count) != 0) return -1;
    for (i = 0; i < total; i++) {
        const size_t bytes = tensors[i].bytes > 0 ? (size_t)tensors[i].bytes : 1;
        if (bytes <= text->room[i]) continue;
        if (i >= graph->inputs && pack_is_kept_(graph, i)) continue; /* where the input is */
        free(text->tensors[i]);
        text->room[i] = 0;
        text->tensors[i] = calloc(bytes, 1);
        if (text->tensors[i] == NULL) return pack_fail_("pack_step: no memory for %lld bytes", (long long)bytes);
        text->room[i] = bytes;
    }
    for (i = 0; i < graph->inputs; i++) {
        if (pack_roles_[i][0] == PACK_KEPT_) text->tensors[pack_roles_[i][1]] = text->tensors[i];
    }
    return 0;
}

pack_text *pack_text_new(void) {
    pack_text *text = (pack_text *)calloc(1, sizeof *text);
    if (text == NULL) {
        pack_fail_("pack_text_new: no memory");
        return NULL;
    }
    text->context = pack_new(&pack_graphs[0]);
    if (text->context == NULL || pack_text_room_(text, 1) != 0) {
        pack_text_free(text);
        return NULL;
    }
    return text;
}

void pack_text_free(pack_text *text) {
    int i;
    if (text == NULL) return;
    for (i = 0; i < pack_graphs[0].inputs + pack_graphs[0].outputs; i++) {
        if (i < pack_graphs[0].inputs || !pack_is_kept_(&pack_graphs[0], i)) free(text->tensors[i]);
    }
    pack_free(text->context);
    free(text);
}

static void pack_put_(void *to, int bits, int64_t place, int64_t value) {
    if (bits == 64) ((int64_t *)to)[place] = value;
    else ((int32_t *)to)[place] = (int32_t)value;
}

static float pack_half_(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    if (exponent == 31) bits = sign | 0x7f800000 | fraction << 13;
    if (exponent == 0) {
        value = (float)fraction / 16777216.0f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

int pack_step(pack_text *text, const int64_t *tokens, int64_t count, float *logits) {
    const pack_graph *graph = &pack_graphs[0];
    const pack_tensor *tensors;
    const char *row;
    int64_t k, rows;
    int i;
    if (pack_state_.level == NULL) return pack_fail_("no pack is open: call pack_open first");
    if (text == NULL || tokens == NULL || logits == NULL)
        return pack_fail_("pack_step: given NULL; allowed: a text, tokens and logits");
    if (count < 1 || count > PACK_TEXT_LENGTH - text->count)
        return pack_fail_("pack_step: given %lld tokens after %lld; allowed: 1 or more, up to %d in all", (long long)count,
                          (long long)text->count, PACK_TEXT_LENGTH);
    for (k = 0; k < count; k++) {
        if (tokens[k] < 0 || tokens[k] >= PACK_VOCABULARY)
            return pack_fail_("pack_step: given token %lld; allowed: 0 to %d", (long long)tokens[k], PACK_VOCABULARY - 1);
    }
    if (pack_text_room_(text, count) != 0) return -1;
    tensors = pack_tensors(text->context);
    for (i = 0; i < graph->inputs; i++) {
        const int role = pack_roles_[i][0], bits = tensors[i].type.bits;
        for (k = 0; k < count && role == PACK_TOKENS_; k++) pack_put_(text->tensors[i], bits, k, tokens[k]);
        for (k = 0; k < count && role == PACK_PLACES_; k++) pack_put_(text->tensors[i], bits, k, text->count + k);
        for (k = 0; k < PACK_TEXT_LENGTH && role == PACK_MASK_; k++)
            pack_put_(text->tensors[i], bits, k, k < text->count + count);
    }
    if (pack_run_at_(text->context, graph, &count, text->tensors) != 0) return -1;
    text->count += count;
    rows = tensors[PACK_LOGITS_].rank == 3 ? tensors[PACK_LOGITS_].sizes[1] : 1;
    k = tensors[PACK_LOGITS_].sizes[tensors[PACK_LOGITS_].rank - 1];
    row = (const char *)text->tensors[PACK_LOGITS_] + (rows - 1) * k * (tensors[PACK_LOGITS_].type.bits / 8);
    if (tensors[PACK_LOGITS_].type.bits == 32) memcpy(logits, row, PACK_VOCABULARY * sizeof *logits);
    else for (k = 0; k < PACK_VOCABULARY; k++) logits[k] = pack_half_(((const uint16_t *)row)[k]);
    return 0;
}

int64_t pack_text_count(const pack_text *text) {
    return text == NULL ? 0 : text->count;
}

int pack_text_rewind(pack_text *text, int64_t count) {
    if (text == NULL || count < 0 || count > text->count)
        return pack_fail_("pack_text_rewind: given %lld tokens; allowed: 0 to %lld, the text's", (long long)count,
                          (long long)pack_text_count(text));
    text->count = count;
    return 0;
}
