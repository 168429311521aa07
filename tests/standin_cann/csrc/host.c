/* The bridge to the Python module STANDIN_HOST. Nothing of Python is linked: its C API is looked up in the process, so that
 * the same library serves a program without Python. */
#define _GNU_SOURCE
#include "host.h"
#include "standin.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *object;

static struct {
    int (*initialized)(void);
    int (*finalizing)(void);
    int (*ensure)(void);
    void (*release)(int);
    object (*import)(const char *);
    object (*call_method)(object, const char *, const char *, ...);
    object (*tuple_item)(object, long);
    long long (*as_long)(object);
    const char *(*as_text)(object);
    void (*take)(object);
    void (*drop)(object);
    void (*print_error)(void);
    object (*error)(void);
} py;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool python_there;

static void look_up(void) {
    const struct { const char *name; void *to; } names[] = {
        {"Py_IsInitialized", &py.initialized}, {"PyGILState_Ensure", &py.ensure}, {"PyGILState_Release", &py.release},
        {"PyImport_ImportModule", &py.import}, {"PyObject_CallMethod", &py.call_method}, {"PyTuple_GetItem", &py.tuple_item},
        {"PyLong_AsLongLong", &py.as_long}, {"PyUnicode_AsUTF8", &py.as_text}, {"Py_IncRef", &py.take},
        {"Py_DecRef", &py.drop}, {"PyErr_Print", &py.print_error}, {"PyErr_Occurred", &py.error},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(RTLD_DEFAULT, names[i].name);
        if (!found) return;
        memcpy(names[i].to, &found, sizeof found);
    }
    void *found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!found) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    memcpy(&py.finalizing, &found, sizeof found);
    python_there = true;
}

static bool python(void) {
    pthread_once(&once, look_up);
    return python_there && py.initialized() && !(py.finalizing && py.finalizing()) && *standin_setting("STANDIN_HOST", "-") != '-';
}

/* The host module itself is at fault: that must be loud, whoever reads the status. */
static int broken(const char *phase) {
    fprintf(stderr, "stand-in CANN: the host module %s failed in %s\n", standin_setting("STANDIN_HOST", ""), phase);
    if (py.error()) py.print_error();
    standin_message("EZ9999: Inner Error! the stand-in's own host module failed (see stderr).\n");
    return NN_INNER;
}

static object module(void) {
    static object found; /* under the GIL */
    if (!found) found = py.import(standin_setting("STANDIN_HOST", ""));
    return found;
}

API void host_start(void) {
    if (!standin_number("STANDIN_PRELOAD", 0) || !python()) return;
    int gil = py.ensure();
    object host = module();
    object done = host ? py.call_method(host, "start", NULL) : NULL;
    if (done) py.drop(done); else broken("start");
    py.release(gil);
}

API int host_workspace(const char *json, uint64_t *ws, void **call) {
    *ws = (uint64_t)standin_number("STANDIN_WORKSPACE", 65536);
    *call = NULL;
    if (!python()) {
        int status = (int)standin_number("STANDIN_STATUS", 0);
        if (status) standin_message(standin_setting("STANDIN_MESSAGE", "EZ9999: Inner Error!\n        planted refusal\n"));
        return status;
    }
    int gil = py.ensure(), status;
    object host = module();
    object answer = host ? py.call_method(host, "workspace", "(s)", json) : NULL;
    object text = answer ? py.tuple_item(answer, 2) : NULL, kept = text ? py.tuple_item(answer, 3) : NULL;
    if (!kept) {
        status = broken("workspace");
    } else {
        status = (int)py.as_long(py.tuple_item(answer, 0));
        *ws = (uint64_t)py.as_long(py.tuple_item(answer, 1));
        standin_message(py.as_text(text));
        if (!status) {
            py.take(kept);
            *call = kept;
        }
        if (py.error()) status = broken("workspace");
    }
    if (answer) py.drop(answer);
    py.release(gil);
    return status;
}

/* Without a host module: the bytes of the files STANDIN_OUTPUT and STANDIN_OUTPUT_LSE, or else a pattern. */
static void fill(unsigned char *to, uint64_t bytes, const char *path) {
    for (uint64_t k = 0; k < bytes; k++) to[k] = (unsigned char)(0x3C ^ (k & 1));
    FILE *file = *path ? fopen(path, "rbe") : NULL;
    if (!file) return;
    if (fread(to, 1, bytes, file) != bytes) fprintf(stderr, "stand-in CANN: %s is shorter than the output\n", path);
    fclose(file);
}

API int host_launch(void *call, void *const *blank, const uint64_t *blank_bytes, int n_blank) {
    if (!call || !python()) {
        int status = (int)standin_number("STANDIN_LAUNCH_STATUS", 0);
        for (int i = 0; !status && i < n_blank; i++)
            if (blank[i]) fill(blank[i], blank_bytes[i], standin_setting(i ? "STANDIN_OUTPUT_LSE" : "STANDIN_OUTPUT", ""));
        standin_latch((int)standin_number("STANDIN_SYNC_STATUS", 0), "");
        return status;
    }
    int gil = py.ensure(), status;
    object host = module();
    object answer = host ? py.call_method(host, "launch", "(O)", call) : NULL;
    object text = answer ? py.tuple_item(answer, 1) : NULL, later = text ? py.tuple_item(answer, 2) : NULL;
    object fault = later ? py.tuple_item(answer, 3) : NULL;
    if (!fault) {
        status = broken("launch");
    } else {
        status = (int)py.as_long(py.tuple_item(answer, 0));
        standin_message(py.as_text(text));
        standin_latch((int)py.as_long(later), py.as_text(fault));
        if (py.error()) status = broken("launch");
    }
    if (answer) py.drop(answer);
    py.drop(call);
    py.release(gil);
    return status;
}

API void host_forget(void *call) {
    if (!call || !python()) return;
    int gil = py.ensure();
    py.drop(call);
    py.release(gil);
}
