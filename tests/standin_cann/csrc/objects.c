/* libnnopbase: descriptors of tensors, lists and arrays, counted while they live. */
#include "objects.h"
#include "host.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 64, MOST_ITEMS = 1 << 20 };

static int64_t *copy(const int64_t *values, uint64_t n) {
    int64_t *made = calloc(n + 1, sizeof *made);
    if (made && values && n) memcpy(made, values, n * sizeof *made);
    return made;
}

API aclTensor *aclCreateTensor(const int64_t *dims, uint64_t rank, int dtype, const int64_t *strides, int64_t offset, int format,
                               const int64_t *storage, uint64_t storage_rank, void *data) {
    if (rank > MOST_AXES || storage_rank > MOST_AXES || (rank && !dims)) return NULL;
    aclTensor *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (aclTensor){dtype, format, rank, storage_rank, offset, copy(dims, rank), copy(strides, rank), copy(storage, storage_rank), data};
    if (!strides) { /* dense */
        int64_t step = 1;
        for (uint64_t i = rank; i-- > 0; step *= dims[i]) t->strides[i] = step;
    }
    standin_count(LIVE_TENSORS, 1);
    return t;
}

API int32_t aclDestroyTensor(const aclTensor *t) {
    if (!t) return ACL_OK;
    free(t->dims);
    free(t->strides);
    free(t->storage);
    free((void *)t);
    standin_count(LIVE_TENSORS, -1);
    return ACL_OK;
}

API aclTensorList *aclCreateTensorList(const aclTensor *const *items, uint64_t n) {
    if (n > MOST_ITEMS) return NULL;
    aclTensorList *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->n = n;
    made->items = calloc(n + 1, sizeof *items);
    if (n) memcpy(made->items, items, n * sizeof *items);
    standin_count(LIVE_LISTS, 1);
    return made;
}

API int32_t aclDestroyTensorList(const aclTensorList *list) {
    if (!list) return ACL_OK;
    for (uint64_t i = 0; i < list->n; i++) aclDestroyTensor(list->items[i]);
    free(list->items);
    free((void *)list);
    standin_count(LIVE_LISTS, -1);
    return ACL_OK;
}

API aclIntArray *aclCreateIntArray(const int64_t *values, uint64_t n) {
    aclIntArray *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    *made = (aclIntArray){n, copy(values, n)};
    standin_count(LIVE_INT_ARRAYS, 1);
    return made;
}

API int32_t aclDestroyIntArray(const aclIntArray *array) {
    if (!array) return ACL_OK;
    free(array->values);
    free((void *)array);
    standin_count(LIVE_INT_ARRAYS, -1);
    return ACL_OK;
}

API aclScalar *aclCreateScalar(void *value, int dtype) {
    aclScalar *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->dtype = dtype;
    memcpy(made->value.raw, value, (size_t)element_bits(dtype) / 8);
    standin_count(LIVE_SCALARS, 1);
    return made;
}

API int32_t aclDestroyScalar(const aclScalar *scalar) {
    if (!scalar) return ACL_OK;
    free((void *)scalar);
    standin_count(LIVE_SCALARS, -1);
    return ACL_OK;
}

API int32_t aclDestroyAclOpExecutor(aclOpExecutor *e) {
    if (!e) return ACL_OK;
    host_forget(e->call);
    standin_count(LIVE_EXECUTORS, -1);
    free(e);
    return ACL_OK;
}

/* Arrays that the operator does not take, but that callers of other operators make. */
API void *aclCreateFloatArray(const float *values, uint64_t n) { (void)values; (void)n; return calloc(1, 8); }
API void *aclCreateBoolArray(const bool *values, uint64_t n) { (void)values; (void)n; return calloc(1, 8); }
API int32_t aclDestroyFloatArray(void *array) { free(array); return ACL_OK; }
API int32_t aclDestroyBoolArray(void *array) { free(array); return ACL_OK; }
