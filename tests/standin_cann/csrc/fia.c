/* libopapi: a recorder behind every entry of the operator. fia_table.inc is generated and holds one function an entry. */
#define _GNU_SOURCE
#include "host.h"
#include "objects.h"
#include "text.h"
#include <string.h>
#include <unistd.h>

/* ---- recording ---- */
static void put_tensor(text_t *t, const aclTensor *x) {
    if (!x) { text_add(t, "null"); return; }
    text_add(t, "{\"dtype\":%d,\"format\":%d,\"dims\":", x->dtype, x->format);
    text_ints(t, x->dims, x->rank);
    text_add(t, ",\"strides\":");
    text_ints(t, x->strides, x->rank);
    text_add(t, ",\"storage\":");
    text_ints(t, x->storage, x->storage_rank);
    text_add(t, ",\"offset\":%lld,\"addr\":%llu}", (long long)x->offset, (unsigned long long)(uintptr_t)x->data);
}

static void put_list(text_t *t, const aclTensorList *list) {
    if (!list) { text_add(t, "null"); return; }
    text_add(t, "[");
    for (uint64_t i = 0; i < list->n; i++) {
        if (i) text_add(t, ",");
        put_tensor(t, list->items[i]);
    }
    text_add(t, "]");
}

static void put_ints(text_t *t, const aclIntArray *a) {
    if (a) text_ints(t, a->values, a->n); else text_add(t, "null");
}

static void put_int(text_t *t, int64_t x) { text_add(t, "%lld", (long long)x); }
static void put_bool(text_t *t, bool x) { text_add(t, x ? "true" : "false"); }
static void put_double(text_t *t, double x) { text_double(t, x); }
static void put_str(text_t *t, const char *x) { text_string(t, x); }

static void open_record(text_t *t, const char *fn) {
    text_add(t, "{\"event\":\"workspace\",\"fn\":\"%s\",\"pid\":%d,\"device\":%d,\"args\":{", fn, (int)getpid(), standin_physical_device());
}

/* ---- what the hardware would notice: addresses that are no device memory, or not aligned ---- */

/* Bytes from the address to the end of the last element; 0 for a tensor without elements. */
static uint64_t reach(const aclTensor *x) {
    int64_t last = x->offset;
    for (uint64_t i = 0; i < x->rank; i++) {
        if (x->dims[i] <= 0) return 0;
        if (x->strides[i] > 0) last += (x->dims[i] - 1) * x->strides[i];
    }
    return ((uint64_t)(last + 1) * (uint64_t)element_bits(x->dtype) + 7) / 8;
}

static bool sound(const aclTensor *x) {
    uint64_t bytes = x ? reach(x) : 0;
    return !bytes || ((uintptr_t)x->data % 32 == 0 && standin_on_device(x->data, bytes));
}

static bool sound_list(const aclTensorList *list) {
    for (uint64_t i = 0; list && i < list->n; i++)
        if (!sound(list->items[i])) return false;
    return true;
}

static void keep_output(aclOpExecutor *e, const aclTensor *x) {
    uint64_t bytes = x ? reach(x) : 0, skip = x ? (uint64_t)x->offset * (uint64_t)element_bits(x->dtype) / 8 : 0;
    bool there = bytes && standin_on_device(x->data, bytes);
    e->out[e->n_out] = there ? x->data + skip : NULL;
    e->out_bytes[e->n_out++] = there ? bytes - skip : 0;
}

/* ---- the two phases ---- */
static int first_phase(const char *fn, const char *op, text_t *t, bool sound_addresses, const aclTensor *out, const aclTensor *lse, bool keep,
                       uint64_t *ws, aclOpExecutor **executor) {
    text_add(t, "}}");
    standin_count(TOTAL_CALLS, 1);
    if (standin_logging()) standin_log(t->at, t->used);
    if (executor) *executor = NULL;
    if (!ws || !executor) {
        free(t->at);
        return NN_NULL_POINTER;
    }
    int status = standin_current_device() < 0 ? ACL_NO_CONTEXT : ACL_OK;
    void *call = NULL;
    if (!status) status = host_workspace(t->at, ws, &call);
    free(t->at);
    standin_log_event("answer", fn, status);
    if (status || !keep) {
        host_forget(call);
        return status;
    }
    aclOpExecutor *made = calloc(1, sizeof *made);
    made->fn = op;
    made->call = call;
    made->workspace = *ws;
    made->fault = sound_addresses ? 0 : ACL_AICORE_EXCEPTION;
    keep_output(made, out);
    keep_output(made, lse);
    standin_count(LIVE_EXECUTORS, 1);
    *executor = made;
    return ACL_OK;
}

static const char *const wild =
    "EZ9999: Inner Error!\nEZ9999: [PID: 0] The error from device(chipId:0, dieId:0), serial number is 1, there is an exception of aivec "
    "error, core id is 0, error code = 0x800000. errorStr: The DDR address of the MTE instruction is out of range.\n";

static int second_phase(void *workspace, uint64_t size, aclOpExecutor *e, void *stream) {
    if (!e) return NN_NULL_POINTER;
    standin_count(TOTAL_LAUNCHES, 1);
    standin_log_event("launch", e->fn, 0);
    int status = standin_is_stream(stream) ? standin_device_status() : ACL_BAD_STREAM;
    if (!status && e->workspace && (size < e->workspace || !standin_on_device(workspace, e->workspace))) e->fault = ACL_AICORE_EXCEPTION;
    if (!status && e->fault) {
        standin_latch(e->fault, wild);
        host_forget(e->call);
    } else if (!status) {
        status = host_launch(e->call, e->out, e->out_bytes, e->n_out);
    } else {
        host_forget(e->call);
    }
    if (status) standin_log_event("refused", e->fn, status);
    e->call = NULL;
    aclDestroyAclOpExecutor(e); /* a launch uses the executor up */
    return status;
}

#include "fia_table.inc"
