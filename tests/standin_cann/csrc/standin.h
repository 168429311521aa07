/* What the parts of the stand-in CANN runtime share. libascendcl.so owns all state; the other libraries call these. */
#ifndef STANDIN_H
#define STANDIN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum {
    ACL_OK = 0,
    ACL_BAD_ARGUMENT = 100000,
    ACL_BAD_PARAM = 107000,
    ACL_BAD_DEVICE = 107001,
    ACL_NO_CONTEXT = 107002,
    ACL_BAD_STREAM = 107003,
    ACL_OUT_OF_MEMORY = 207001,
    ACL_GRAPH_FAILURE = 500002,
    ACL_AICORE_EXCEPTION = 507015,
    ACL_DRIVER_ERROR = 507899,
    NN_NULL_POINTER = 161001,
    NN_BAD_PARAM = 161002,
    NN_INNER = 561000,
};

/* Counters of what is alive in this process; standin_live(name) reads them. */
enum standin_counter {
    LIVE_TENSORS, LIVE_LISTS, LIVE_INT_ARRAYS, LIVE_SCALARS, LIVE_EXECUTORS, LIVE_BLOCKS, LIVE_BYTES, LIVE_HOST_BLOCKS,
    LIVE_STREAMS, LIVE_EVENTS, TOTAL_CALLS, TOTAL_LAUNCHES, TOTAL_MALLOCS, TOTAL_COPIES, COUNTERS
};

const char *standin_setting(const char *name, const char *fallback);
long long standin_number(const char *name, long long fallback);
void standin_count(enum standin_counter which, long long change);
long long standin_live(const char *name);

bool standin_logging(void);
void standin_log(const char *line, size_t length);

/* Text of the last error of this thread; NULL or "" clears it. */
void standin_message(const char *text);

int standin_current_device(void);
int standin_physical_device(void);

/* A device fault of this process stays until it ends; a lost device until its line in STANDIN_STATE goes. */
void standin_latch(int code, const char *text);
int standin_device_status(void);

/* Whether [p, p + n) lies in one living block of device memory. */
bool standin_on_device(const void *p, size_t n);
bool standin_is_stream(const void *stream);
void standin_log_event(const char *event, const char *fn, int status);

#endif
