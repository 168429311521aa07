"""Calls that the command-line tests use."""

from __future__ import annotations

import json
from typing import Any


def plain(**attrs: Any) -> dict[str, Any]:
    """A small valid call: BNSD, FLOAT16, two heads."""
    return {
        "fiafuzz": 1,
        "api": "v5",
        "product": "950",
        "seed": 7,
        "inputs": {
            "query": {"shape": [1, 2, 3, 16], "dtype": "FLOAT16"},
            "key": [{"shape": [1, 2, 5, 16], "dtype": "FLOAT16"}],
            "value": [{"shape": [1, 2, 5, 16], "dtype": "FLOAT16"}],
        },
        "attrs": {"numHeads": 2, "scaleValue": 0.25, "inputLayout": "BNSD", "innerPrecise": 0, **attrs},
        "outputs": {"attentionOut": {"shape": [1, 2, 3, 16], "dtype": "FLOAT16"}, "softmaxLse": None},
    }


def line(case: dict[str, Any], **fields: Any) -> str:
    """A record line."""
    return json.dumps({**fields, "case": case} if fields else case) + "\n"
