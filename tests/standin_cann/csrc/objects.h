/* The descriptors that callers make. */
#ifndef STANDIN_OBJECTS_H
#define STANDIN_OBJECTS_H
#include "standin.h"

typedef struct {
    int dtype, format;
    uint64_t rank, storage_rank;
    int64_t offset, *dims, *strides, *storage;
    char *data;
} aclTensor;
typedef struct { uint64_t n; const aclTensor **items; } aclTensorList;
typedef struct { uint64_t n; int64_t *values; } aclIntArray;
typedef struct { int dtype; union { double f64; float f32; int64_t i64; int32_t i32; uint8_t u8; uint16_t u16; char raw[16]; } value; } aclScalar;

typedef struct {
    const char *fn;
    void *call;
    uint64_t workspace;
    int fault, n_out;
    void *out[2];
    uint64_t out_bytes[2];
} aclOpExecutor;

API int32_t aclDestroyAclOpExecutor(aclOpExecutor *e);

/* Bits of one element by aclDataType; 0 for what is unknown here. */
static inline int element_bits(int dtype) {
    switch (dtype) {
        case 29: case 40: case 41: return 4;
        case 2: case 4: case 12: case 34: case 35: case 36: case 37: return 8;
        case 1: case 6: case 7: case 27: return 16;
        case 0: case 3: case 8: case 33: return 32;
        case 9: case 10: case 11: case 16: return 64;
        case 17: return 128;
        default: return 0;
    }
}

#endif
