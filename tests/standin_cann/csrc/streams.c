/* Streams and events. Work is done when it is launched; a fault of the device shows at the next synchronisation. */
#define _GNU_SOURCE
#include "standin.h"
#include <stdlib.h>
#include <time.h>

enum { STREAM_MARK = 0x53545231 };
typedef struct { int mark, id; } stream_t;

static int32_t make_stream(void **stream) {
    static int next;
    if (standin_current_device() < 0) return ACL_NO_CONTEXT;
    int status = standin_device_status();
    if (status) return status;
    stream_t *made = malloc(sizeof *made);
    if (!made) return ACL_OUT_OF_MEMORY;
    *made = (stream_t){STREAM_MARK, ++next};
    standin_count(LIVE_STREAMS, 1);
    *stream = made;
    return ACL_OK;
}

static int32_t drop_stream(void *stream) {
    if (!standin_is_stream(stream)) return ACL_BAD_STREAM;
    ((stream_t *)stream)->mark = 0;
    standin_count(LIVE_STREAMS, -1);
    free(stream);
    return ACL_OK;
}

API bool standin_is_stream(const void *stream) { return stream && ((const stream_t *)stream)->mark == STREAM_MARK; }

static int32_t wait_for_all(const char *fn) {
    int status = standin_device_status();
    standin_log_event("sync", fn, status);
    return status;
}

API int32_t aclrtCreateStream(void **stream) { return make_stream(stream); }
API int32_t aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) { (void)priority; (void)flag; return make_stream(stream); }
API int32_t aclrtDestroyStream(void *stream) { return drop_stream(stream); }
API int32_t aclrtDestroyStreamForce(void *stream) { return drop_stream(stream); }
API int32_t aclrtStreamGetId(void *stream, int32_t *id) { *id = stream ? ((stream_t *)stream)->id : 0; return ACL_OK; }
API int32_t aclrtStreamQuery(void *stream, int *state) { (void)stream; *state = 0; return standin_device_status(); }
API int32_t aclrtSynchronizeStream(void *stream) { (void)stream; return wait_for_all("aclrtSynchronizeStream"); }
API int32_t aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms) { (void)stream; (void)ms; return wait_for_all("aclrtSynchronizeStreamWithTimeout"); }
API int32_t aclrtSynchronizeDevice(void) { return wait_for_all("aclrtSynchronizeDevice"); }
API int32_t aclrtSynchronizeDeviceWithTimeout(int32_t ms) { (void)ms; return wait_for_all("aclrtSynchronizeDeviceWithTimeout"); }
API int32_t aclrtStreamWaitEvent(void *stream, void *event) { (void)stream; (void)event; return ACL_OK; }

typedef struct timespec event_t;

static int32_t make_event(void **event) {
    event_t *made = malloc(sizeof *made);
    if (!made) return ACL_OUT_OF_MEMORY;
    clock_gettime(CLOCK_MONOTONIC, made);
    standin_count(LIVE_EVENTS, 1);
    *event = made;
    return ACL_OK;
}

API int32_t aclrtCreateEvent(void **event) { return make_event(event); }
API int32_t aclrtCreateEventWithFlag(void **event, uint32_t flag) { (void)flag; return make_event(event); }
API int32_t aclrtCreateEventExWithFlag(void **event, uint32_t flag) { (void)flag; return make_event(event); }
API int32_t aclrtDestroyEvent(void *event) {
    if (event) standin_count(LIVE_EVENTS, -1);
    free(event);
    return ACL_OK;
}
API int32_t aclrtRecordEvent(void *event, void *stream) {
    (void)stream;
    if (event) clock_gettime(CLOCK_MONOTONIC, event);
    return ACL_OK;
}
API int32_t aclrtResetEvent(void *event, void *stream) { (void)event; (void)stream; return ACL_OK; }
API int32_t aclrtSynchronizeEvent(void *event) { (void)event; return wait_for_all("aclrtSynchronizeEvent"); }
API int32_t aclrtQueryEventStatus(void *event, int *state) { (void)event; *state = 1; return ACL_OK; }
API int32_t aclrtQueryEventWaitStatus(void *event, int *state) { (void)event; *state = 0; return ACL_OK; }
API int32_t aclrtEventElapsedTime(float *ms, void *from, void *to) {
    event_t *a = from, *b = to;
    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) / 1e6);
    return ACL_OK;
}
