"""Whole ``fiafuzz fuzz`` command lines on the stand-in, and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fiafuzz.model.case import Case, case_from_dict
from tests.standin_cann import records
from tests.standin_cann.faults import digest


@dataclass(frozen=True)
class Campaign:
    """A finished run."""

    code: int
    summary: dict[str, Any]
    text: str
    found: list[dict[str, Any]]
    """Corpus entries."""
    events: list[dict[str, Any]]

    def of_kind(self, name: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [event for event in self.events if event["event"] == name]

    @property
    def by_call(self) -> dict[str, str]:
        """What was found: the call's digest as the stand-in sees it -> verdict code."""
        return {call_digest(case_from_dict(entry["case"])): entry["signature"]["code"] for entry in self.found}


def call_digest(case: Case) -> str:
    """How the stand-in names the call that a case makes."""
    return digest(records.as_recorded(case))


def fuzz(env: dict[str, str], place: Path, backend: str, *arguments: str, timeout: float = 900) -> Campaign:
    """Run ``fiafuzz fuzz`` with its corpus and run directory below ``place``."""
    place.mkdir(parents=True, exist_ok=True)
    verb = [sys.executable, "-m", "fiafuzz.cli.main", "fuzz", "--backend", backend]
    command = [*verb, "--corpus", "corpus", "--out", "run", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=place, timeout=timeout, check=False)
    events = [json.loads(line) for line in (place / "run" / "events.ndjson").read_text().splitlines()] if (place / "run").is_dir() else []
    folder = place / "corpus" / "found"
    found = [json.loads(path.read_text()) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    summary = json.loads(done.stdout) if done.stdout.strip() else {}
    return Campaign(done.returncode, summary, done.stderr, found, events)


def recorded(log: Path, soc: str) -> list[Case]:
    """The calls of a log, in order."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [line for line in lines if line["event"] == "workspace"]
    return [records.case_of(records.parse(json.dumps(call)), soc, with_values=False) for call in calls]


def easy_prey(log: Path, soc: str) -> list[str]:
    """Digests of calls on which any wrong value must show: unquantised ones with rows and keys; each once.

    A call with as many heads as the one before may be the other side of a relation, which is not run when the case fails: those are
    left out. So are calls with one head: the known-good calls that open a campaign and probe devices must stay sound.
    """
    cases = recorded(log, soc)
    heads = [0, *(case.attrs.numHeads for case in cases)]
    chosen = [case for before, case in zip(heads, cases) if _plain(case) and case.attrs.numHeads not in (before, 1)]
    return list(dict.fromkeys(map(digest, chosen)))


def refused_calls(log: Path, soc: str) -> list[str]:
    """Digests of calls that the first phase refused and that have tensors, each once and none of them more than once in the log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    statuses = [line["status"] for line in lines if line["event"] == "answer"]
    cases = recorded(log, soc)
    digests = [digest(case) for case in cases]
    return [d for d, status, case in zip(digests, statuses, cases) if status and digests.count(d) == 1 and case.attrs.numHeads != 1]


def _plain(case: Case) -> bool:
    out, query = case.outputs.attentionOut, case.inputs.query
    tensors = [t for t in (query, out, *(case.inputs.key or ())) if t is not None]
    lengths = (*(case.inputs.actualSeqLengths or ()), *(case.inputs.actualSeqLengthsKv or ()))
    dtypes = {t.dtype for t in tensors}
    return dtypes in ({"FLOAT16"}, {"BFLOAT16"}) and min(t.numel for t in tensors) >= 64 and min(lengths, default=1) > 0

