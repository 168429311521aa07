/* Settings, counters, log, error texts, and the health of devices. */
#define _GNU_SOURCE
#include "standin.h"
#include "text.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

API const char *standin_setting(const char *name, const char *fallback) {
    const char *found = getenv(name);
    return found && *found ? found : fallback;
}

API long long standin_number(const char *name, long long fallback) {
    const char *found = getenv(name);
    return found && *found ? atoll(found) : fallback;
}

/* ---- counters ---- */
static atomic_llong counters[COUNTERS];
static const char *const counter_names[COUNTERS] = {
    "tensors", "lists", "int_arrays", "scalars", "executors", "blocks", "bytes", "host_blocks",
    "streams", "events", "calls", "launches", "mallocs", "copies",
};

API void standin_count(enum standin_counter which, long long change) { atomic_fetch_add(&counters[which], change); }

/* What is alive now (or, for calls, launches, mallocs and copies, what has been so far); -1 for an unknown name. */
API long long standin_live(const char *name) {
    for (int i = 0; i < COUNTERS; i++)
        if (!strcmp(name, counter_names[i])) return atomic_load(&counters[i]);
    return -1;
}

/* ---- log: one write a line, so that lines of several processes do not mix ---- */
API bool standin_logging(void) { return *standin_setting("STANDIN_LOG", "") != 0; }

API void standin_log(const char *line, size_t length) {
    const char *path = standin_setting("STANDIN_LOG", "");
    if (!*path) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    char *whole = malloc(length + 1);
    if (whole) {
        memcpy(whole, line, length);
        whole[length] = '\n';
        if (write(fd, whole, length + 1) < 0) { /* a full disk must not change what the runtime answers */ }
        free(whole);
    }
    close(fd);
}

API void standin_log_event(const char *event, const char *fn, int status) {
    if (!standin_logging()) return;
    text_t t = {0};
    text_add(&t, "{\"event\":\"%s\",\"fn\":", event);
    text_string(&t, fn);
    text_add(&t, ",\"pid\":%d,\"device\":%d,\"status\":%d}", (int)getpid(), standin_physical_device(), status);
    standin_log(t.at, t.used);
    free(t.at);
}

/* ---- error text of the thread: reading takes it away, the text stays valid until the next reading ---- */
static __thread char recent[16384], handed[16384];

API void standin_message(const char *text) { snprintf(recent, sizeof recent, "%s", text ? text : ""); }

API const char *aclGetRecentErrMsg(void) {
    memcpy(handed, recent, sizeof handed);
    recent[0] = 0;
    return handed;
}

/* ---- health ---- */
enum { MOST_DEVICES = 64 };
static atomic_int latched[MOST_DEVICES];
static char latched_text[MOST_DEVICES][4096];
static pthread_mutex_t latch_lock = PTHREAD_MUTEX_INITIALIZER;

API void standin_latch(int code, const char *text) {
    int device = standin_current_device();
    if (device < 0 || device >= MOST_DEVICES || !code) return;
    pthread_mutex_lock(&latch_lock);
    if (!atomic_load(&latched[device])) {
        snprintf(latched_text[device], sizeof latched_text[device], "%s", text ? text : "");
        atomic_store(&latched[device], code);
    }
    pthread_mutex_unlock(&latch_lock);
}

static bool lost(int physical) {
    const char *path = standin_setting("STANDIN_STATE", "");
    FILE *file = *path ? fopen(path, "re") : NULL;
    if (!file) return false;
    int found;
    bool dead = false;
    while (!dead && fscanf(file, "%d", &found) == 1) dead = found == physical;
    fclose(file);
    return dead;
}

API int standin_device_status(void) {
    int device = standin_current_device();
    if (device < 0 || device >= MOST_DEVICES) return ACL_OK;
    int code = atomic_load(&latched[device]);
    if (code) {
        standin_message(latched_text[device]);
        return code;
    }
    if (lost(standin_physical_device())) {
        standin_message("EL0001: [Driver] the device does not answer any more: drv ret=4294967295.\n");
        return ACL_DRIVER_ERROR;
    }
    return ACL_OK;
}

API int32_t aclrtPeekAtLastError(int level) { (void)level; return ACL_OK; }
API int32_t aclrtGetLastError(int level) { (void)level; return ACL_OK; }
