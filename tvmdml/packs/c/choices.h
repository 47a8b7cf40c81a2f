
/* -- tvmdml.kernels.tiles: each function gives its answer, whose parts have 20 bits each, and 1; or 0 if it has none. */

enum { PACK_MOST_TILES_ = 32 };

/* Sizes whose products stay within 64 bits, with all that they are multiplied with. */
static int pack_are_usual_(int64_t rows, int64_t columns) {
    return rows >= 0 && columns >= 0 && rows < ((int64_t)1 << 40) && columns < ((int64_t)1 << 40) / (rows + 1);
}

static int64_t pack_covering_(int64_t size, int64_t width) {
    return (size + width - 1) / width;
}

static int64_t pack_least_(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pack_most_(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t pack_apart_(int64_t a, int64_t b) {
    return a < b ? b - a : a - b;
}

static int64_t pack_joined_(int64_t a, int64_t b, int64_t c) {
    return a | b << 20 | c << 40;
}

/* The first of several costs that is about as low as any. */
static int pack_usual_(const int64_t *costs, int count, int64_t alike) {
    int64_t least = costs[0];
    int i;
    for (i = 1; i < count; i++) least = pack_least_(least, costs[i]);
    for (i = 0; costs[i] > least * alike / 100; i++) continue;
    return i;
}

static double pack_real_(int64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Twentieths of cycles, rounded to the nearest, and to even. Nothing is fused. */
static int64_t pack_twentieths_(double sums, double reads, double begin, double more, double last) {
    const volatile double large = 4503599627370496.0;
    volatile double cycles = sums > reads ? sums : reads, besides;
    cycles = cycles > 4 ? cycles : 4;
    besides = begin + more;
    besides = besides + last;
    cycles = cycles + besides;
    cycles = cycles * 20;
    cycles = cycles + large;
    return (int64_t)(cycles - large);
}

static int pack_of_product_(const int64_t *g, int64_t *answer) {
    static const int8_t of_16[] = {6, 4, 8, 3, 12, 2, 0}, of_8[] = {6, 2, 4, 3, 0}, of_4[] = {4, 2, 0}, other[] = {8, 3, 6, 4, 0};
    static const int8_t narrow[] = {12, 1, 6, 1, 4, 1, 2, 1, 0};
    const int64_t rows = g[0], columns = g[1], wanted_rows = g[3], wanted_vectors = g[4];
    const int x86 = g[5] != 0, is_short = g[6] != 0, few = rows <= 4, many = columns >= 256 && !g[8];
    int64_t lanes = g[2], unit = 1, most, tiles[PACK_MOST_TILES_][2], costs[PACK_MOST_TILES_];
    const int8_t *known;
    int count = 0, i, k, fit;
    if (!pack_are_usual_(rows, columns) || lanes < 1 || wanted_rows < 0 || wanted_vectors < 0) return 0;
    while (lanes > pack_most_(1, columns)) lanes /= 2;
    known = !x86 ? other : lanes == 16 ? of_16 : lanes == 8 ? of_8 : of_4;
    if (lanes < 16 && lanes * 2 > columns && x86) known = narrow;
    most = pack_most_(1, is_short && columns >= lanes ? pack_covering_(columns, lanes) : columns / lanes);
    for (fit = 1; fit >= 0 && count == 0; fit--) { /* those that fit, or if there is none all, with fewer vectors */
        for (i = 0; wanted_rows != 0 ? i == 0 : known[i] != 0; i += 2) {
            int64_t own = wanted_rows != 0 ? wanted_rows : known[i], vectors = wanted_rows != 0 ? wanted_vectors : known[i + 1];
            if (fit && vectors > most) continue;
            tiles[count][0] = own;
            tiles[count++][1] = fit ? vectors : most;
        }
    }
    for (i = 0, k = few ? count : 0; i < k; i++) {
        for (fit = 1; fit <= 4; fit *= 2) {
            if (rows > fit || fit >= tiles[i][0]) continue;
            tiles[count][0] = fit;
            tiles[count++][1] = tiles[i][1];
        }
    }
    for (i = 0; i < count; i++) {
        int64_t own = 8 * tiles[i][0] * tiles[i][1], a = unit, b = own;
        if (own < 1) return 0;
        while (b != 0) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        unit = unit / a * own;
        if (unit > 1 << 20) return 0;
    }
    for (i = 0; i < count; i++) {
        const int64_t *tile = tiles[many ? count - 1 - i : i];
        int64_t mr = tile[0], nr = tile[1] * lanes, down = 1, across = many ? columns : pack_covering_(columns, nr) * nr;
        if (few) {
            down = pack_covering_(rows, mr) * mr;
        } else if (g[7]) {
            int64_t rest = rows % mr, part = 0, left = mr;
            for (k = 4; k >= 2 && part == 0; k--) part = mr % k == 0 && mr > k ? k : 0;
            if (part != 0 && rest <= mr - part) left = pack_covering_(5 * pack_covering_(rest, part) * part, 4);
            down = rows / mr * mr + (rest == 0 ? 0 : left);
        }
        costs[i] = down * across * (unit + (8 + mr + tile[1]) * unit / (8 * mr * tile[1]));
    }
    i = pack_usual_(costs, count, 103);
    if (many) i = count - 1 - i;
    *answer = pack_joined_(tiles[i][0], tiles[i][1], lanes);
    return 1;
}

static int64_t pack_cost_of_parts_(const int64_t *g, int64_t down, int64_t across) {
    int64_t own[2], rounds = pack_covering_(g[0] * down * across, g[5]);
    int i;
    for (i = 0; i < 2; i++) {
        int64_t count = i == 0 ? down : across;
        own[i] = count == 1 ? g[1 + i] : pack_covering_(pack_covering_(g[1 + i], g[3 + i]), count) * g[3 + i];
    }
    return rounds * (own[0] * own[1] + g[6] * own[0] + g[7] * own[1]);
}

static int pack_parts_of_product_(const int64_t *g, int64_t *answer) {
    const int64_t tasks = g[5];
    int64_t down, across, most[2], least = INT64_MAX;
    int pass, i;
    *answer = pack_joined_(1, 1, 0);
    if (!pack_are_usual_(g[1], g[2]) || g[0] < 0 || g[3] < 1 || g[4] < 1 || g[6] < 0 || g[7] < 0) return 0;
    if (tasks <= 1 || g[0] >= 4 * tasks || g[0] % tasks == 0) return 1;
    if (tasks > 1024 || g[3] > 1024 || g[4] > 1024 || g[6] > 1024 || g[7] > 1024) return 0;
    for (i = 0; i < 2; i++) most[i] = pack_least_(pack_most_(1, g[1 + i] / g[3 + i]), 2 * tasks);
    for (pass = 0; pass < 2; pass++) {
        for (across = 1; across <= most[1]; across++) {
            for (down = 1; down <= most[0] && down * across <= 4 * tasks; down++) {
                int64_t cost = pack_cost_of_parts_(g, down, across);
                if (pass == 0) {
                    least = pack_least_(least, cost);
                } else if (cost <= least * 101 / 100) {
                    *answer = pack_joined_(down, across, 0);
                    return 1;
                }
            }
        }
    }
    return 0;
}

static int pack_of_places_(const int64_t *g, int64_t *answer) {
    const int64_t rows = g[0], columns = g[1], filters = g[2], count = g[4], *tiles = g + 5, *rest = tiles + 2 * count;
    const int64_t lanes = rest[0], *wanted = rest + 4;
    const double begin = pack_real_(rest[1]), read = pack_real_(rest[2]), line = pack_real_(rest[3]);
    int64_t far = INT64_MAX, least = INT64_MAX, i, k, run, lines;
    if (!pack_are_usual_(rows, columns) || filters < 0 || filters > ((int64_t)1 << 32) || lanes < 1) return 0;
    for (i = 0; i < count; i++) {
        for (k = 0; k < (tiles[2 * i + 1] > 2 ? 2 : 1); k++) {
            const int64_t places = tiles[2 * i], vectors = k == 0 ? pack_least_(tiles[2 * i + 1], 2) : tiles[2 * i + 1];
            if (vectors > g[3] || (vectors != 1 && (vectors - 1) * lanes >= filters)) continue;
            for (run = 1; run <= pack_least_(places, columns); run++) {
                for (lines = 1; lines <= pack_least_(places / run, rows); lines++) {
                    const int64_t tile[3] = {run, lines, vectors};
                    int64_t distance = 0, cost;
                    int j;
                    for (j = 0; j < 3; j++) distance += wanted[j] != 0 ? pack_apart_(wanted[j], tile[j]) : 0;
                    cost = pack_twentieths_((double)(run * lines * vectors) / 2, (double)(run * lines + vectors) / 2 + 1, begin,
                                            read * (double)vectors, line * (double)(lines - 1));
                    if (__builtin_mul_overflow(cost, pack_covering_(columns, run) * pack_covering_(rows, lines), &cost) ||
                        __builtin_mul_overflow(cost, pack_covering_(filters, vectors * lanes), &cost))
                        return 0;
                    if (distance > far || (distance == far && cost >= least)) continue;
                    far = distance;
                    least = cost;
                    *answer = pack_joined_(run, lines, vectors);
                }
            }
        }
    }
    return least != INT64_MAX;
}

static int pack_of_following_places_(const int64_t *g, int64_t *answer) {
    const int64_t places = g[0], filters = g[1], count = g[2], *tiles = g + 3, *rest = tiles + 2 * count;
    const int64_t lanes = rest[0], whole = rest[1] != 0, *wanted = rest + 4;
    const double begin = pack_real_(rest[2]), read = pack_real_(rest[3]);
    int64_t far = INT64_MAX, near[PACK_MOST_TILES_], costs[PACK_MOST_TILES_], i;
    int some = 0, k;
    if (!pack_are_usual_(places, filters) || lanes < 1) return 0;
    for (i = 0; i < count; i++) {
        const int64_t own = tiles[2 * i], vectors = tiles[2 * i + 1];
        const double sums = (double)(own * vectors) / 2, reads = (double)(own + vectors) / 2 + 1;
        int64_t distance = 0;
        if (own > pack_most_(places, 1) || (vectors != 1 && (vectors - 1 + whole) * lanes >= filters + whole)) continue;
        for (k = 0; k < 2; k++) distance += wanted[k] != 0 ? pack_apart_(wanted[k], tiles[2 * i + k]) : 0;
        if (distance > far || some == PACK_MOST_TILES_) continue;
        if (distance < far) some = 0;
        far = distance;
        near[some] = i;
        costs[some++] = pack_covering_(places, own) * pack_covering_(filters, vectors * lanes) *
                        pack_twentieths_(sums, reads, begin, read * (double)vectors, 0);
    }
    if (some == 0) return 0;
    i = near[pack_usual_(costs, some, 103)];
    *answer = pack_joined_(tiles[2 * i], tiles[2 * i + 1], 0);
    return 1;
}

static int pack_wastes_columns_(const int64_t *g, int64_t *answer) {
    if (!pack_are_usual_(g[0], 1) || g[1] < 1 || g[1] > 1 << 20) return 0;
    *answer = 100 * pack_covering_(g[0], g[1]) * g[1] > 103 * g[0];
    return 1;
}

/* The first of several counts that is about as good as any; what a step costs is its weight by the count, and some more. */
static int pack_together_(int64_t size, const int64_t *counts, int64_t count, int64_t weight, int64_t more, int64_t *answer) {
    int64_t fitting[PACK_MOST_TILES_], costs[PACK_MOST_TILES_], i;
    int some = 0;
    if (!pack_are_usual_(size, 1)) return 0;
    for (i = 0; i < count && some < PACK_MOST_TILES_; i++) {
        if (counts[i] < 1 || counts[i] > pack_most_(size, 1)) continue;
        fitting[some] = counts[i];
        costs[some++] = 20 * pack_covering_(size, counts[i]) * (counts[i] * weight + more);
    }
    if (some != 0) *answer = fitting[pack_usual_(costs, some, 103)];
    return some != 0;
}

static int pack_choose_(int32_t which, const int64_t *g, int64_t *answer) {
    switch (which) {
    case 0: return pack_of_product_(g, answer);
    case 1: return pack_parts_of_product_(g, answer);
    case 2: return pack_of_places_(g, answer);
    case 3: return pack_of_following_places_(g, answer);
    case 4: return pack_wastes_columns_(g, answer);
    case 5: return pack_together_(g[0], g + 2, g[1], 1, 1, answer);
    default: return pack_together_(g[0], g + 2, g[1], g[2 + g[1]], 4, answer);
    }
}
