/* A growing text, and the JSON forms that the log needs. */
#ifndef STANDIN_TEXT_H
#define STANDIN_TEXT_H
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { char *at; size_t used, room; } text_t;

static inline void text_add(text_t *t, const char *format, ...) {
    for (;;) {
        va_list more;
        va_start(more, format);
        int wanted = vsnprintf(t->at ? t->at + t->used : NULL, t->room - t->used, format, more);
        va_end(more);
        if (wanted < 0) return;
        if (t->at && t->used + (size_t)wanted < t->room) { t->used += (size_t)wanted; return; }
        size_t room = (t->room ? t->room : 2048) * 2 + (size_t)wanted;
        char *larger = realloc(t->at, room);
        if (!larger) abort();
        t->at = larger;
        t->room = room;
    }
}

static inline void text_ints(text_t *t, const int64_t *values, uint64_t n) {
    text_add(t, "[");
    for (uint64_t i = 0; i < n; i++) text_add(t, i ? ",%lld" : "%lld", (long long)values[i]);
    text_add(t, "]");
}

/* Bytes beyond ASCII become the code points of the same number: the reader gets the bytes back as Latin-1. */
static inline void text_string(text_t *t, const char *s) {
    if (!s) { text_add(t, "null"); return; }
    text_add(t, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        if (*p < 32 || *p == '"' || *p == '\\' || *p > 126) text_add(t, "\\u%04x", *p);
        else text_add(t, "%c", *p);
    }
    text_add(t, "\"");
}

static inline void text_double(text_t *t, double x) {
    if (isnan(x)) text_add(t, "NaN");
    else if (isinf(x)) text_add(t, x > 0 ? "Infinity" : "-Infinity");
    else text_add(t, "%.17g", x);
}

#endif
