"""Error texts in the shape that the real runtime gives them: blocks by a code, stamps, function and line, a traceback."""

from __future__ import annotations

import os
import time


def _stamp() -> str:
    return f"[PID: {os.getpid()}] {time.strftime('%Y-%m-%d-%H:%M:%S')}.000.000"


def refusal(code: int, entry: str, why: str) -> str:
    """What aclGetRecentErrMsg says after a refusal with an aclnn status."""
    why = " ".join(why.split())
    if code in (161001, 161002):
        return (
            f"{_stamp()} AclNN_Parameter_Error(EZ1001): {why}\n        [FUNC:CheckParams][FILE:{entry}.cpp][LINE:212]\n"
            f"        TraceBack (most recent call last):\n        {entry}GetWorkspaceSize failed.\n"
        )
    if code == 361001:
        return (
            f"{_stamp()} AclNN_Runtime_Error(EZ9903): {why}\n        TraceBack (most recent call last):\n"
            f"        {entry}GetWorkspaceSize failed.\n"
        )
    return (
        f"E89999: Inner Error!\nE89999: {_stamp()} {why}[FUNC:CheckFeature][FILE:fused_infer_attention_score_tiling_check.cpp][LINE:118]\n"
        "        TraceBack (most recent call last):\n"
        "        [FUNC:DoOpTilingFusedInferAttentionScore][FILE:fused_infer_attention_score_tiling.cpp][LINE:345]\n"
        f"        Tiling failed. {entry} status {code}[FUNC:GetWorkspaceSize][FILE:op_executor.cpp][LINE:91]\n"
    )


def device_exception(kind: str, error_code: str, reason: str) -> str:
    """What the device's report says: ``kind`` is the unit (aicore, aivec, ...)."""
    return (
        f"EZ9999: Inner Error!\nEZ9999: {_stamp()} The error from device(chipId:0, dieId:0), serial number is 1, there is an exception of "
        f"{kind} error, core id is 12, error code = {error_code}, dump info: pc start: 0x124080000000, current: 0x124080000a54, "
        f"errorStr: {reason}[FUNC:ProcessStarsCoreErrorInfo][FILE:device_error_core_proc.cc][LINE:321]\n"
        "        TraceBack (most recent call last):\n        Kernel task happen error, retCode=0x26, [aicore exception].\n"
    )
