/* What every operator's header includes. */
#ifndef STANDIN_ACLNN_BASE_H
#define STANDIN_ACLNN_BASE_H
#include "aclnn/acl_meta.h"
#endif
