"""Predictions against the measured verdicts of the operator's own host code; every disagreement is known by name and reason.

The rows are reference data and not part of the repository: they are looked for in $FIAFUZZ_SHARED/data or in ../shared/data.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from fiafuzz.model.case import case_from_dict
from oracles.constraints.predict import predict

from .host_agreement import rows, shared

LISTED = Path(__file__).with_name("host_disagreements.csv")
LEAST = {"950-v5-2026.08": 0.995, "a2-v3-2026.08": 0.97, "a3-v3-2026.08": 0.97, "a2-v5-2026.08": 0.97}


@pytest.fixture(scope="module")
def measured() -> dict[str, Counter[str]]:
    if not (shared() / "data" / "host_verdicts_dev.jsonl.gz").exists():
        pytest.skip("the measured host verdicts are not here (set FIAFUZZ_SHARED)")
    found: dict[str, Counter[str]] = {profile: Counter() for profile in LEAST}
    for row in rows():
        host, count = row["host"], found[row["profile"]]
        got = predict(case_from_dict(row["case"]), row["profile"])
        assert not got.undecided, row["id"]
        if row.get("unsure"):
            count["unsure"] += 1
            continue
        count["rows"] += 1
        agrees = got.verdict == host["verdict"]
        count["agree"] += agrees
        if host["verdict"] == "reject":
            count["rejected"] += 1
            count["code"] += agrees and host["code"] in got.codes
        elif host["verdict"] in ("crash", "hang"):
            count["deaths"] += 1
            count["deaths foreseen"] += agrees
        if not agrees:
            count[f"{row['id']}: {host['verdict']}, predicted {got.verdict}"] = 1
    return found


@pytest.mark.parametrize("profile", LEAST)
def test_agreement(measured: dict[str, Counter[str]], profile: str) -> None:
    count = measured[profile]
    assert count["rows"] > 300
    assert count["agree"] >= LEAST[profile] * count["rows"]
    assert count["code"] >= 0.99 * count["rejected"]
    assert count["deaths"] == count["deaths foreseen"]


def test_every_disagreement_is_listed(measured: dict[str, Counter[str]]) -> None:
    with LISTED.open(newline="") as file:
        listed = {f"{r['row']}: {r['host']}, predicted {r['predicted']}" for r in csv.DictReader(file) if r["reason"]}
    found = {name for count in measured.values() for name in count if ": " in name}
    assert found == listed
