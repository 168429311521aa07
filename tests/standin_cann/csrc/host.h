/* Who answers a call: a Python module of the host process where there is one, plain numbers otherwise. */
#ifndef STANDIN_HOST_H
#define STANDIN_HOST_H
#include "standin.h"

/* Load what the host module needs, where STANDIN_PRELOAD is set: then the first call is as quick as any other. */
API void host_start(void);
/* Ask for the answer to the first phase. Gives the status; ``ws`` is the workspace size, ``call`` what the second phase needs. */
API int host_workspace(const char *json, uint64_t *ws, void **call);
/* Ask for the second phase; a fault of the device that it causes is latched. */
API int host_launch(void *call, void *const *blank, const uint64_t *blank_bytes, int n_blank);
/* Forget a call that is not launched. */
API void host_forget(void *call);

#endif
