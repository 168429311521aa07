/* Device memory is host memory that is known by its blocks: copies and kernels outside of them are refused. */
#define _GNU_SOURCE
#include "standin.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *at; size_t size; } block_t;
static block_t *blocks; /* by address */
static size_t n_blocks, room;
static long long bytes_used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t total(void) { return (size_t)standin_number("STANDIN_MEMORY_MIB", 4096) << 20; }

/* Index of the first block that starts behind p. */
static size_t behind(const char *p) {
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (blocks[mid].at <= p) low = mid + 1; else high = mid;
    }
    return low;
}

static bool within(const void *p, size_t n) {
    size_t i = behind(p);
    if (!i) return false;
    const block_t *b = &blocks[i - 1];
    size_t offset = (size_t)((const char *)p - b->at);
    return offset <= b->size && n <= b->size - offset && (offset < b->size || !n);
}

API bool standin_on_device(const void *p, size_t n) {
    pthread_mutex_lock(&lock);
    bool found = within(p, n);
    pthread_mutex_unlock(&lock);
    return found;
}

API int32_t aclrtMalloc(void **p, size_t size, int policy) {
    (void)policy;
    if (!p || !size) return ACL_BAD_ARGUMENT;
    int status = standin_current_device() < 0 ? ACL_NO_CONTEXT : standin_device_status();
    if (status) return status;
    pthread_mutex_lock(&lock);
    void *made = NULL;
    if (bytes_used + (long long)size > (long long)total() || posix_memalign(&made, 512, size + 32)) {
        pthread_mutex_unlock(&lock);
        standin_message("EL0004: [PID: 0] Failed to allocate memory. Possible Cause: Available memory is insufficient.\n");
        return ACL_OUT_OF_MEMORY;
    }
    if (n_blocks == room) {
        room = room ? 2 * room : 256;
        blocks = realloc(blocks, room * sizeof *blocks);
        if (!blocks) abort();
    }
    size_t i = behind(made);
    memmove(&blocks[i + 1], &blocks[i], (n_blocks - i) * sizeof *blocks);
    blocks[i] = (block_t){made, size};
    n_blocks++;
    bytes_used += (long long)size;
    pthread_mutex_unlock(&lock);
    memset(made, 0xA5, size); /* fresh memory is not zero on a device either */
    standin_count(LIVE_BLOCKS, 1);
    standin_count(LIVE_BYTES, (long long)size);
    standin_count(TOTAL_MALLOCS, 1);
    *p = made;
    return ACL_OK;
}

API int32_t aclrtMallocAlign32(void **p, size_t size, int policy) { return aclrtMalloc(p, size, policy); }

API int32_t aclrtFree(void *p) {
    if (!p) return ACL_BAD_ARGUMENT;
    pthread_mutex_lock(&lock);
    size_t i = behind(p);
    if (!i || blocks[i - 1].at != p) {
        pthread_mutex_unlock(&lock);
        return ACL_BAD_PARAM;
    }
    size_t size = blocks[i - 1].size;
    memmove(&blocks[i - 1], &blocks[i], (n_blocks - i) * sizeof *blocks);
    n_blocks--;
    bytes_used -= (long long)size;
    pthread_mutex_unlock(&lock);
    standin_count(LIVE_BLOCKS, -1);
    standin_count(LIVE_BYTES, -(long long)size);
    free(p);
    return ACL_OK;
}

API int32_t aclrtGetMemInfo(int kind, size_t *left, size_t *all) {
    (void)kind;
    *all = total();
    pthread_mutex_lock(&lock);
    *left = *all - (size_t)bytes_used;
    pthread_mutex_unlock(&lock);
    return ACL_OK;
}

API int32_t aclrtMallocHost(void **p, size_t size) {
    if (posix_memalign(p, 64, size ? size : 1)) return ACL_OUT_OF_MEMORY;
    standin_count(LIVE_HOST_BLOCKS, 1);
    return ACL_OK;
}

API int32_t aclrtFreeHost(void *p) {
    if (p) standin_count(LIVE_HOST_BLOCKS, -1);
    free(p);
    return ACL_OK;
}

/* kind: 0 host to host, 1 host to device, 2 device to host, 3 device to device, 4 and more: by the addresses */
API int32_t aclrtMemcpy(void *to, size_t most, const void *from, size_t size, int kind) {
    int status = standin_device_status();
    if (status) return status;
    if (!size) return ACL_OK;
    if (!to || !from || size > most) return ACL_BAD_PARAM;
    bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
    if ((to_device && !standin_on_device(to, size)) || (from_device && !standin_on_device(from, size))) {
        standin_message("EE1001: [PID: 0] The argument is invalid. Reason: the address of a copy is not in device memory.\n");
        return ACL_BAD_PARAM;
    }
    memmove(to, from, size);
    standin_count(TOTAL_COPIES, 1);
    return ACL_OK;
}

API int32_t aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t size, int kind, void *stream) {
    (void)stream;
    return aclrtMemcpy(to, most, from, size, kind);
}

API int32_t aclrtMemset(void *to, size_t most, int32_t value, size_t size) {
    int status = standin_device_status();
    if (status) return status;
    if (size > most || !standin_on_device(to, size)) return ACL_BAD_PARAM;
    memset(to, value, size);
    return ACL_OK;
}

API int32_t aclrtMemsetAsync(void *to, size_t most, int32_t value, size_t size, void *stream) {
    (void)stream;
    return aclrtMemset(to, most, value, size);
}
