/* Process, devices and contexts, names and versions, system parameters. */
#define _GNU_SOURCE
#include "standin.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 64 };
static __thread int current = -1;
static int contexts[MOST_DEVICES];

/* ASCEND_RT_VISIBLE_DEVICES: ascending physical numbers; reading stops at the first token that is none. */
static int visible(int *physical) {
    int total = (int)standin_number("STANDIN_DEVICES", 1), n = 0, last = -1;
    if (total > MOST_DEVICES) total = MOST_DEVICES;
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!list) {
        for (; n < total; n++) physical[n] = n;
        return n;
    }
    while (*list >= '0' && *list <= '9') {
        char *end;
        errno = 0;
        long number = strtol(list, &end, 10);
        if (errno || number <= last || number >= total || (*end && *end != ',')) break;
        physical[n++] = (int)number;
        last = (int)number;
        list = *end ? end + 1 : end;
    }
    return n;
}

API int standin_current_device(void) { return current; }

API int standin_physical_device(void) {
    int physical[MOST_DEVICES], n = visible(physical);
    return current >= 0 && current < n ? physical[current] : -1;
}

API int32_t aclInit(const char *config) {
    (void)config;
    void *library = dlopen("libnnopbase.so", RTLD_LAZY), *found = library ? dlsym(library, "host_start") : NULL;
    void (*start)(void);
    memcpy(&start, &found, sizeof start);
    if (start) start();
    return ACL_OK;
}
API int32_t aclFinalize(void) { return ACL_OK; }
API void aclAppLog(int level, const char *fn, const char *file, uint32_t line, const char *format, ...) {
    (void)level; (void)fn; (void)file; (void)line; (void)format;
}

API const char *aclrtGetSocName(void) { return standin_setting("STANDIN_SOC", "Ascend910B2"); }

API int32_t aclrtGetDeviceCount(uint32_t *count) {
    int physical[MOST_DEVICES];
    *count = (uint32_t)visible(physical);
    return ACL_OK;
}

API int32_t aclrtSetDevice(int32_t device) {
    int physical[MOST_DEVICES], n = visible(physical);
    if (device < 0 || device >= n) {
        standin_message("EE1001: [PID: 0] The argument is invalid. Reason: Set device failed, invalid device.\n");
        return ACL_BAD_DEVICE;
    }
    current = device;
    return standin_device_status();
}

API int32_t aclrtResetDevice(int32_t device) {
    if (device == current) current = -1;
    return ACL_OK;
}

API int32_t aclrtGetDevice(int32_t *device) {
    if (current < 0) return ACL_NO_CONTEXT;
    *device = current;
    return ACL_OK;
}

API int32_t aclrtGetCurrentContext(void **context) {
    if (current < 0) return ACL_NO_CONTEXT;
    *context = &contexts[current];
    return ACL_OK;
}

API int32_t aclrtSetCurrentContext(void *context) {
    long at = (int *)context - contexts;
    if (at < 0 || at >= MOST_DEVICES) return ACL_BAD_PARAM;
    current = (int)at;
    return ACL_OK;
}

API int32_t aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    if (flags) *flags = 0;
    if (active) *active = device == current;
    return ACL_OK;
}

API int32_t aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logic) { *logic = user; return ACL_OK; }
API int32_t aclrtSetDeviceSatMode(int mode) { (void)mode; return ACL_OK; }
API int32_t aclGetDeviceCapability(uint32_t device, int what, int64_t *value) { (void)device; (void)what; *value = 0; return ACL_OK; }
API int32_t aclrtSetStreamFailureMode(void *stream, uint64_t mode) { (void)stream; (void)mode; return ACL_OK; }

/* ---- time-outs: kept, and readable, in milliseconds ---- */
static atomic_llong op_timeout_ms;
API long long standin_op_timeout_ms(void) { return atomic_load(&op_timeout_ms); }
API int32_t aclrtSetOpExecuteTimeOut(uint32_t seconds) { atomic_store(&op_timeout_ms, 1000LL * seconds); return ACL_OK; }
API int32_t aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t *actual) {
    atomic_store(&op_timeout_ms, (long long)(microseconds / 1000));
    if (actual) *actual = microseconds;
    return ACL_OK;
}
API int32_t aclrtSetOpWaitTimeout(uint32_t seconds) { (void)seconds; return ACL_OK; }

/* ---- versions: the block is 128 + 4 * 64 + 128 bytes and starts with the text ---- */
API int32_t aclsysGetCANNVersion(int package, char *block) {
    (void)package;
    memset(block, 0, 512);
    strncpy(block, standin_setting("STANDIN_CANN_VERSION", "9.1.0"), 127);
    return ACL_OK;
}
API int32_t aclsysGetVersionStr(char *package, char *version) {
    (void)package;
    memset(version, 0, 128);
    strncpy(version, standin_setting("STANDIN_CANN_VERSION", "9.1.0"), 127);
    return ACL_OK;
}
