/* Goes on with a text: each argument is a step, its tokens separated by commas, or "<n" to go back to n tokens. Prints the likeliest
   token after each step, or the error. */
#define TINY_IMPLEMENTATION
#include "tiny.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    static float logits[TINY_VOCABULARY];
    int64_t tokens[TINY_TEXT_LENGTH + 1];
    const int64_t likely = 3;
    tiny_text *text, *other;
    int i, k, best;
    if (tiny_text_new() == NULL) puts(tiny_error()); /* no pack is open */
    if (tiny_open(argv[1]) != 0) return puts(tiny_error()), 1;
    text = tiny_text_new();
    other = tiny_text_new(); /* texts know nothing of each other */
    if (text == NULL || other == NULL) return puts(tiny_error()), 1;
    for (i = 2; i < argc; i++) {
        char *at = argv[i];
        int64_t count = 0;
        int status;
        if (*at == '<') {
            status = tiny_text_rewind(text, atoi(at + 1));
            if (status != 0) puts(tiny_error());
            continue;
        }
        for (; *at != '\0' && count <= TINY_TEXT_LENGTH; at += *at == ',') tokens[count++] = strtol(at, &at, 10);
        if (tiny_step(other, &likely, 1, logits) != 0 || tiny_text_rewind(other, 0) != 0) puts(tiny_error());
        if (tiny_step(text, tokens, count, logits) != 0) {
            puts(tiny_error());
            continue;
        }
        for (best = 0, k = 1; k < TINY_VOCABULARY; k++) {
            if (logits[k] > logits[best]) best = k;
        }
        printf("%d %d\n", (int)tiny_text_count(text), best);
    }
    tiny_text_free(text);
    tiny_text_free(other);
    tiny_text_free(NULL);
    tiny_close();
    return 0;
}
