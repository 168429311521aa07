/* Descriptors of tensors, lists and arrays. */
#ifndef STANDIN_ACL_META_H
#define STANDIN_ACL_META_H
#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t aclnnStatus;
typedef struct aclOpExecutor aclOpExecutor;
typedef struct aclTensor aclTensor;
typedef struct aclTensorList aclTensorList;
typedef struct aclIntArray aclIntArray;

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride, int64_t offset,
                           aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
aclnnStatus aclDestroyTensorList(const aclTensorList *array);
aclnnStatus aclDestroyIntArray(const aclIntArray *array);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);

#ifdef __cplusplus
}
#endif
#endif
