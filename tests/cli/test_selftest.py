"""fiafuzz selftest: the kill table for people and machines, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

from .conftest import Ran

Run = Callable[..., Ran]


def test_the_kill_table(fiafuzz: Run) -> None:
    ran = fiafuzz("selftest", "--fault", "scale-twice", "--fault", "faulty:heads-code", "--seed", "3")
    assert ran.code == 0, ran.err
    head, *rows, _count, _median = ran.out.splitlines()
    assert head.split() == ["fault", "found", "code", "cases", "seconds", "shrunk", "needs", "runs"]
    assert [row.split()[:3] for row in rows] == [["scale-twice", "yes", "F101"], ["heads-code", "yes", "F203"]]
    assert ran.out.splitlines()[-2] == "2 of 2 planted faults found"


def test_one_object_for_machines(fiafuzz: Run) -> None:
    ran = fiafuzz("selftest", "--fault", "lse-sign", "--json")
    assert ran.code == 0, ran.err
    (entry,) = json.loads(ran.out)["faults"]
    assert {"name", "found", "cases", "seconds", "shrunk"} <= set(entry)
    assert (entry["name"], entry["found"], entry["code"], entry["group"]) == ("lse-sign", True, "F101", "softmax_lse")
    assert entry["shrunk"] == len(entry["differs"]) <= entry["interaction"] + 2
    assert entry["case"]["attrs"]["softmaxLseFlag"] is True


def test_a_survivor_is_exit_1(fiafuzz: Run) -> None:
    ran = fiafuzz("selftest", "--fault", "nondeterministic-row", "--max-time", "0.05s", "--json")
    assert ran.code == 1, ran.err
    (entry,) = json.loads(ran.out)["faults"]
    assert (entry["found"], entry["shrunk"], entry["case"]) == (False, None, None)
    text = fiafuzz("selftest", "--fault", "nondeterministic-row", "--max-time", "0.05s")
    assert text.code == 1 and text.out.splitlines()[-1] == "survivors: nondeterministic-row"


def test_unknown_names_are_usage_errors(fiafuzz: Run) -> None:
    ran = fiafuzz("selftest", "--fault", "scale-twicee")
    assert ran.code == 2 and "did you mean 'scale-twice'?" in ran.complaint
    assert fiafuzz("selftest", "--max-time", "soon").code == 2
    assert fiafuzz("selftest", "--seed", "-1").code == 2
