"""Triage: what makes two findings the same, and whether a new one is explained by a known one.

The signature of a finding is (backend, verdict code, rule or minimal feature set, error). The minimal feature set are
the factor words (model/factors.py) in which the shrunk case differs from the plainest valid call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Optional

import msgspec

from fiafuzz.model.case import Case
from fiafuzz.model.factors import factors_of
from fiafuzz.model.scene import Scene

from .blueprint import PLAIN, SIZES, Fields, OptionalTensor, differences, plain_value, put_together
from .dissect import take_apart
from .results import clean
from .verdict import CHECK_CODES, NUMERIC_CODES, PROCESS_CODES, Verdict

RULE_CODES: frozenset[str] = CHECK_CODES - {"F202"}
"""Codes whose findings are told apart by the rule, not by features."""


MARKS: tuple[tuple[str, str, Callable[[Fields], bool]], ...] = (
    ("key_heads", "many", lambda f: f["KV_N"] > 1),
    ("scale", "other", lambda f: f["scaleValue"] != PLAIN["scaleValue"]),
    ("tokens", "given", lambda f: (f["preTokens"], f["nextTokens"]) != (PLAIN["preTokens"], PLAIN["nextTokens"])),
    ("table", "shuffled", lambda f: f["table"] is not None),
)
"""Features that no factor tells: name, word, and the test on the fields of a case."""


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes findings the same. ``features`` is sorted; it is empty for findings that are about a rule."""

    backend: str
    code: str
    rule: Optional[str] = None
    features: tuple[tuple[str, str], ...] = ()
    error: str = ""

    @property
    def id(self) -> str:
        """A short stable name: the code and ten hex digits that depend on the signature alone."""
        data = msgspec.json.encode(self)
        return f"{self.code}-{hashlib.blake2b(data, digest_size=5).hexdigest()}"


@cache
def plain_case(product: str, api: str) -> Case:
    """The plainest valid call of a product and API."""
    return put_together(PLAIN, api, product)


@cache
def plain_words(product: str, api: str) -> Mapping[str, str]:
    """The factor words of the plainest valid call."""
    return factors_of(Scene(plain_case(product, api)))


def features_of(case: Case) -> tuple[tuple[str, str], ...]:
    """Factor words of a case that the plainest call does not have, and marks for what no factor tells, sorted."""
    plain = plain_words(case.product, case.api)
    found = {name: word for name, word in factors_of(Scene(case)).items() if word != plain[name]}
    fields = take_apart(case)
    found.update({name: word for name, word, holds in MARKS if holds(fields)})
    return tuple(sorted(found.items()))


def signature_of(backend: str, verdict: Verdict, error: str, case: Case) -> Signature:
    """The signature of a finding, from its (shrunk) case."""
    code = verdict.code or ""
    about_rule = (code in RULE_CODES and verdict.rule is not None) or code == "F106"
    return Signature(
        backend,
        code,
        verdict.rule if about_rule or code in PROCESS_CODES else None,
        () if about_rule else features_of(case),
        clean(error, 80),
    )


def family(code: str) -> str:
    """Codes that may be faces of one fault: wrong values, non-finite and unwritten elements go together."""
    return "values" if code in ("F101", "F102", "F104") else code


def may_explain(
    known: Signature, code: str, rule: Optional[str], error: str, features: tuple[tuple[str, str], ...]
) -> bool:
    """Whether a finding with these features could be the fault of a known signature: the same kind of failure, and
    every feature of the known minimal set present."""
    if code == "F106" and family(known.code) == "values":
        # Wrong values break relations too: a call that has every feature of a known wrong value needs no finding of its own.
        return bool(known.features) and set(known.features) <= set(features)
    if family(known.code) != family(code):
        return False
    if code in RULE_CODES or code == "F106":
        return known.rule == rule and (code == "F106" or known.error == error)
    if code not in NUMERIC_CODES and known.error != error:
        return False
    return set(known.features) <= set(features)


def describe(case: Case) -> tuple[str, ...]:
    """The fields in which a case differs from the plainest valid call, one line each, in words."""
    fields = take_apart(case)
    return tuple(_line(name, fields[name]) for name in differences(fields))


def _line(name: str, value: Any) -> str:
    if isinstance(value, OptionalTensor):
        dtype = "dtype of query" if value.dtype == "=" else value.dtype
        return f"{name[3:]}: {dtype} [{', '.join(str(a) for a in value.form)}]"
    if name.startswith("="):
        return clean(f"{name[1:]} as given: {_short(value.value)}", 160)
    if name.startswith(("in:", "fill:")):
        return clean(f"{name.replace('in:', '').replace('fill:', 'values of ')}: {_short(value)}", 160)
    plain = SIZES.get(name, plain_value(name))
    return clean(f"{name}: {_short(value)} (plain: {_short(plain)})", 160)


def _short(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return msgspec.json.encode(value).decode()
    if value is None:
        return "none"
    return str(list(value)) if isinstance(value, tuple) else str(value)
