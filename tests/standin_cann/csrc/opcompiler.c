/* Options of the operator compiler: taken and forgotten, there is nothing to compile. */
#include "standin.h"
API int32_t aclSetCompileopt(int which, const char *value) { (void)which; (void)value; return ACL_OK; }
API size_t aclGetCompileoptSize(int which) { (void)which; return 256; }
API int32_t aclGetCompileopt(int which, char *value, size_t size) { (void)which; if (size) value[0] = 0; return ACL_OK; }

/* ---- parameters such as the determinism switch: what was set can be read by tests ---- */
static int64_t parameters[32];
API int32_t aclrtSetSysParamOpt(int which, int64_t value) { if (which >= 0 && which < 32) parameters[which] = value; return ACL_OK; }
API int32_t aclrtCtxSetSysParamOpt(int which, int64_t value) { return aclrtSetSysParamOpt(which, value); }
API int32_t aclrtGetSysParamOpt(int which, int64_t *value) { *value = which >= 0 && which < 32 ? parameters[which] : 0; return ACL_OK; }
API long long standin_parameter(int which) { return which >= 0 && which < 32 ? parameters[which] : -1; }
