"""The C signatures of the operator's entries, as the public headers order them, and the C source that records them."""

from __future__ import annotations

TENSOR, LIST, INTS, INT, DOUBLE, BOOL, STR = "tensor", "list", "ints", "int", "double", "bool", "str"

Parameters = tuple[tuple[str, str], ...]


def _all(kind: str, names: str) -> Parameters:
    return tuple((name, kind) for name in names.split())


_FIRST: Parameters = (
    *_all(TENSOR, "query"),
    *_all(LIST, "key value"),
    *_all(TENSOR, "pseShift attenMask"),
    *_all(INTS, "actualSeqLengths actualSeqLengthsKv"),
    *_all(TENSOR, "deqScale1 quantScale1 deqScale2 quantScale2 quantOffset2 antiquantScale antiquantOffset blockTable"),
    *_all(TENSOR, "queryPaddingSize kvPaddingSize"),
)
_SEPARATE: Parameters = (
    *_all(TENSOR, "keyAntiquantScale keyAntiquantOffset valueAntiquantScale valueAntiquantOffset keySharedPrefix valueSharedPrefix"),
    *_all(INTS, "actualSharedPrefixLen"),
)
_ROPE = _all(TENSOR, "queryRope keyRope keyRopeAntiquantScale")
_FOURTH = _all(TENSOR, "dequantScaleQuery learnableSink")
_STARTS = _all(INTS, "qStartIdx kvStartIdx")
_ATTRIBUTES: Parameters = (
    *_all(INT, "numHeads"),
    *_all(DOUBLE, "scaleValue"),
    *_all(INT, "preTokens nextTokens"),
    *_all(STR, "inputLayout"),
    *_all(INT, "numKeyValueHeads sparseMode innerPrecise blockSize antiquantMode"),
    *_all(BOOL, "softmaxLseFlag"),
)
_MODES = _all(INT, "keyAntiquantMode valueAntiquantMode")
_QUERY_MODE = _all(INT, "queryQuantMode")
_PSE_TYPE = _all(INT, "pseType")
_OUTPUTS = _all(TENSOR, "attentionOut softmaxLse")

ENTRIES: dict[str, Parameters] = {
    "aclnnFusedInferAttentionScore": (*_FIRST, *_ATTRIBUTES, *_OUTPUTS),
    "aclnnFusedInferAttentionScoreV2": (*_FIRST, *_SEPARATE, *_ATTRIBUTES, *_MODES, *_OUTPUTS),
    "aclnnFusedInferAttentionScoreV3": (*_FIRST, *_SEPARATE, *_ROPE, *_ATTRIBUTES, *_MODES, *_OUTPUTS),
    "aclnnFusedInferAttentionScoreV4": (
        *_FIRST, *_SEPARATE, *_ROPE, *_FOURTH, *_ATTRIBUTES, *_MODES, *_QUERY_MODE, *_OUTPUTS,
    ),
    "aclnnFusedInferAttentionScoreV5": (
        *_FIRST, *_SEPARATE, *_ROPE, *_FOURTH, *_STARTS, *_ATTRIBUTES, *_MODES, *_QUERY_MODE, *_PSE_TYPE, *_OUTPUTS,
    ),
}
"""Entry -> its parameters in C order, without the workspace size and the executor at the end."""

APIS: dict[str, str] = {entry: f"v{entry[-1] if entry[-1].isdigit() else 1}" for entry in ENTRIES}
"""Entry -> the project's name of the API version."""

C_TYPES: dict[str, str] = {
    TENSOR: "const aclTensor *",
    LIST: "const aclTensorList *",
    INTS: "const aclIntArray *",
    INT: "int64_t ",
    DOUBLE: "double ",
    BOOL: "bool ",
    STR: "char *",
}
_PUT = {TENSOR: "put_tensor", LIST: "put_list", INTS: "put_ints", INT: "put_int", DOUBLE: "put_double", BOOL: "put_bool", STR: "put_str"}
_SOUND = {TENSOR: "sound", LIST: "sound_list"}

MAX_ENTRIES: tuple[str, ...] = tuple(e for e in ENTRIES if APIS[e] in ("v3", "v4", "v5"))
"""Entries that have a ...GetMaxWorkspaceSize too."""


def recorder_source() -> str:
    """The C functions of every entry: record the arguments, then hand over to the two phases of fia.c."""
    parts: list[str] = []
    for entry, parameters in ENTRIES.items():
        suffixes = ("GetWorkspaceSize", "GetMaxWorkspaceSize") if entry in MAX_ENTRIES else ("GetWorkspaceSize",)
        for suffix in suffixes:
            parts.append(_recorder(entry, suffix, parameters))
        parts.append(
            f"API int32_t {entry}(void *workspace, uint64_t size, aclOpExecutor *executor, void *stream) {{\n"
            "    return second_phase(workspace, size, executor, stream);\n}\n"
        )
    return "\n".join(parts)


def _recorder(entry: str, suffix: str, parameters: Parameters) -> str:
    arguments = ", ".join(C_TYPES[kind] + name for name, kind in parameters)
    lines = [f"API int32_t {entry}{suffix}({arguments}, uint64_t *ws, aclOpExecutor **executor) {{", "    text_t t = {0};"]
    lines.append(f'    open_record(&t, "{entry}{suffix}");')
    for i, (name, kind) in enumerate(parameters):
        comma = "," if i else ""
        lines.append(f'    text_add(&t, "{comma}\\"{name}\\":");')
        lines.append(f"    {_PUT[kind]}(&t, {name});")
    sound = " && ".join(f"{_SOUND[kind]}({name})" for name, kind in parameters if kind in _SOUND)
    keep = "true" if suffix == "GetWorkspaceSize" else "false"
    lines.append(f'    return first_phase("{entry}{suffix}", "{entry}", &t, {sound}, attentionOut, softmaxLse, {keep}, ws, executor);')
    return "\n".join([*lines, "}\n"])


def header_name(entry: str) -> str:
    """The file below include/aclnnop that declares an entry."""
    version = "" if APIS[entry] == "v1" else f"_{APIS[entry]}"
    return f"aclnn_fused_infer_attention_score{version}.h"


def header_source(entry: str) -> str:
    """The C header of an entry."""
    guard = f"STANDIN_FUSED_INFER_ATTENTION_SCORE_{APIS[entry].upper()}_H"
    lines = [
        "/* Made by signatures.py from the order of the C parameters. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        '#include "aclnn/aclnn_base.h"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    for suffix in ("GetWorkspaceSize", "GetMaxWorkspaceSize") if entry in MAX_ENTRIES else ("GetWorkspaceSize",):
        arguments = [C_TYPES[kind] + name for name, kind in ENTRIES[entry]]
        tail = ["uint64_t *workspaceSize", "aclOpExecutor **executor"]
        lines += [f"aclnnStatus {entry}{suffix}(", ",\n".join(f"    {a}" for a in (*arguments, *tail)) + ");", ""]
    lines += [
        f"aclnnStatus {entry}(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
    ]
    return "\n".join(lines) + "\n"
