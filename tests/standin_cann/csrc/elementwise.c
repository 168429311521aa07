/* The few other operators that torch_npu needs around a call: strided copy, zero, fill with a number. */
#define _GNU_SOURCE
#include "objects.h"
#include <stdlib.h>
#include <string.h>

typedef struct { int64_t dims[64], to[64], from[64]; uint64_t rank; int64_t total; size_t step; char *target; const char *source; char one[16]; } job_t;

static job_t *new_job(const aclTensor *to) {
    job_t *j = calloc(1, sizeof *j);
    j->rank = to->rank;
    j->step = (size_t)element_bits(to->dtype) / 8;
    j->total = 1;
    for (uint64_t i = 0; i < to->rank; i++) {
        j->dims[i] = to->dims[i];
        j->to[i] = to->strides[i];
        j->total *= to->dims[i];
    }
    j->target = to->data + to->offset * (int64_t)j->step;
    standin_count(LIVE_EXECUTORS, 1);
    return j;
}

static int run(job_t *j) {
    int status = standin_device_status();
    int64_t at[64] = {0};
    for (int64_t k = 0; !status && k < j->total; k++) {
        int64_t to = 0, from = 0;
        for (uint64_t i = 0; i < j->rank; i++) {
            to += at[i] * j->to[i];
            from += at[i] * j->from[i];
        }
        char *target = j->target + to * (int64_t)j->step;
        const char *source = j->source ? j->source + from * (int64_t)j->step : j->one;
        if (!standin_on_device(target, j->step) || (j->source && !standin_on_device(source, j->step))) {
            standin_latch(ACL_AICORE_EXCEPTION, "EZ9999: a copy on the device left the device's memory.\n");
            break;
        }
        memcpy(target, source, j->step);
        for (uint64_t i = j->rank; i-- > 0;) {
            if (++at[i] < j->dims[i]) break;
            at[i] = 0;
        }
    }
    standin_count(LIVE_EXECUTORS, -1);
    free(j);
    return status;
}

API int32_t aclnnInplaceCopyGetWorkspaceSize(const aclTensor *to, const aclTensor *from, uint64_t *ws, job_t **executor) {
    if (!to || !from) return NN_NULL_POINTER;
    if (to->dtype != from->dtype || element_bits(to->dtype) < 8 || from->rank > to->rank) {
        standin_message("EZ1001: [PID: 0] the stand-in copies between tensors of one dtype only.\n");
        return NN_BAD_PARAM;
    }
    job_t *j = new_job(to);
    uint64_t lead = to->rank - from->rank;
    for (uint64_t i = lead; i < to->rank; i++) j->from[i] = from->dims[i - lead] == 1 ? 0 : from->strides[i - lead];
    j->source = from->data + from->offset * (int64_t)j->step;
    *ws = 0;
    *executor = j;
    return ACL_OK;
}
API int32_t aclnnInplaceCopy(void *ws, uint64_t size, job_t *executor, void *stream) { (void)ws; (void)size; (void)stream; return run(executor); }

API int32_t aclnnInplaceZeroGetWorkspaceSize(const aclTensor *to, uint64_t *ws, job_t **executor) {
    if (!to) return NN_NULL_POINTER;
    if (element_bits(to->dtype) < 8) return NN_BAD_PARAM;
    *ws = 0;
    *executor = new_job(to);
    return ACL_OK;
}
API int32_t aclnnInplaceZero(void *ws, uint64_t size, job_t *executor, void *stream) { (void)ws; (void)size; (void)stream; return run(executor); }

static double number(const aclScalar *s) {
    switch (s->dtype) {
        case 0: return s->value.f32;
        case 3: return s->value.i32;
        case 9: return (double)s->value.i64;
        case 11: return s->value.f64;
        case 12: return s->value.u8;
        default: return 0;
    }
}

/* float to float16, ties to even */
static uint16_t half(float f) {
    uint32_t bits, sign;
    memcpy(&bits, &f, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (bits >= 0x477FF000) return (uint16_t)(sign | 0x7C00);
    if (bits < 0x38800000) { /* subnormal: adding 0.5 lets the addition round at the right place */
        float magnitude, shifted;
        memcpy(&magnitude, &bits, 4);
        shifted = magnitude + 0.5f;
        memcpy(&bits, &shifted, 4);
        return (uint16_t)(sign | (bits - 0x3F000000));
    }
    bits += 0xC8000FFF + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

static bool encode(double x, int dtype, char *to) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (dtype) {
        case 0: memcpy(to, &f, 4); return true;
        case 1: { uint16_t h = half(f); memcpy(to, &h, 2); return true; }
        case 27: {
            uint16_t h = x != x ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
            memcpy(to, &h, 2);
            return true;
        }
        case 11: memcpy(to, &x, 8); return true;
        case 2: case 4: case 12: { int64_t i = (int64_t)x; *to = (char)(dtype == 12 ? i != 0 : i); return true; }
        case 3: case 8: { int64_t i = (int64_t)x; memcpy(to, &i, 4); return true; }
        case 9: case 10: { int64_t i = (int64_t)x; memcpy(to, &i, 8); return true; }
        default: return false;
    }
}

API int32_t aclnnInplaceFillScalarGetWorkspaceSize(const aclTensor *to, const aclScalar *value, uint64_t *ws, job_t **executor) {
    char one[16] = {0};
    if (!to || !value) return NN_NULL_POINTER;
    if (!encode(number(value), to->dtype, one)) return NN_BAD_PARAM;
    *ws = 0;
    *executor = new_job(to);
    memcpy((*executor)->one, one, 16);
    return ACL_OK;
}
API int32_t aclnnInplaceFillScalar(void *ws, uint64_t size, job_t *executor, void *stream) { (void)ws; (void)size; (void)stream; return run(executor); }
