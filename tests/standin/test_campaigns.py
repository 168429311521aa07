"""Campaigns on the stand-in: clean on sound devices, and each planted fault gets the right verdict on the right call while the
campaign goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.standin.campaigns import Campaign, easy_prey, fuzz, refused_calls
from tests.standin.test_standin_calls import Environment
from tests.standin_cann.environment import SOCS
from tests.standin_cann.faults import FAULTS

pytestmark = [pytest.mark.standin, pytest.mark.slow]

SOC = SOCS["a2"]
PATIENT = ("--time-limit", "120s")
"""Nothing hangs here, however busy the machine is."""
SHORT = ("-n", "60", "--seed", "5", "--phases", "bulk", "--no-shrink")
PLAN = (*SHORT, "--mode", "valid")
QUICK = {"preload": True, "compute": "reference", "soc": SOC}
"""Settings of a stand-in whose workers start quickly: they start again after every fault."""
SURVIVED = ("wrong-status", "late-status", "no-op", "half", "wrong-dtype", "flip", "overrun", "huge-workspace", "stale")
"""Faults after which the process goes on."""
FATAL = ("device-fault", "device-timeout", "crash")
"""Faults that cost a worker, but no device."""


@pytest.mark.parametrize("product", SOCS)
@pytest.mark.parametrize("backend", ["aclnn", "torch-npu"])
def test_a_sound_device_is_clean(standin_env: Environment, tmp_path: Path, backend: str, product: str) -> None:
    ran = fuzz(standin_env(preload=True, soc=SOCS[product]), tmp_path, backend, "-n", "200", "--seed", "3", *PATIENT)
    assert ran.code == 0, ran.text
    assert ran.summary["verdicts"]["pass"] >= 150
    assert ran.found == []
    (leg,) = ran.of_kind("LegStarted")
    assert leg["profile"] == ("950-v5" if product == "950" else f"{product}-v3")
    assert SOCS[product] in leg["versions"].values()


@pytest.fixture(scope="module")
def prey(standin: object, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Calls of the plan that faults may be planted in, from a clean run of it."""
    import os

    from tests.standin_cann.build import build
    from tests.standin_cann.environment import standin_environment

    place = tmp_path_factory.mktemp("clean")
    log = place / "calls.ndjson"
    ran = fuzz({**os.environ, **standin_environment(build(), log=log, **QUICK)}, place, "aclnn", *PLAN, *PATIENT)  # type: ignore[arg-type]
    assert ran.code == 0, ran.text
    return easy_prey(log, SOC)


def planted(names: tuple[str, ...], prey: list[str]) -> tuple[list[str], dict[str, str]]:
    """Faults, each in a call of its own, and the verdict that each call must get."""
    assert len(prey) >= len(names)
    return [f"{n}:digest=={d}" for n, d in zip(names, prey)], {d: FAULTS[n].expect for n, d in zip(names, prey)}


def went_on(ran: Campaign, cases: int) -> bool:
    """Whether all cases were run."""
    return bool(ran.summary["cases"] == cases and not ran.summary["problems"] and not ran.summary["interrupted"])


def test_faults_that_a_process_survives(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(SURVIVED, prey)
    ran = fuzz(standin_env(**QUICK, faults=faults), tmp_path, "aclnn", *PLAN, *PATIENT)
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert went_on(ran, 60)


def test_faults_that_cost_a_worker(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(FATAL, prey)
    ran = fuzz(standin_env(**QUICK, faults=faults), tmp_path, "aclnn", *PLAN, *PATIENT)
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert went_on(ran, 60)
    assert ran.summary["restarts"] >= len(FATAL)


def test_a_hang_is_cut_off(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(("hang",), prey)
    ran = fuzz(standin_env(**QUICK, faults=faults), tmp_path, "aclnn", *PLAN, "--time-limit", "15s")
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert went_on(ran, 60)


def test_a_lost_device_is_given_up_and_the_other_goes_on(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(("device-lost",), prey)
    state = tmp_path / "lost"
    env = standin_env(**QUICK, faults=faults, state=state, devices=2)
    ran = fuzz(env, tmp_path / "two", "aclnn", "-w", "2", *PLAN, *PATIENT)
    assert ran.by_call == expected, ran.text
    assert ran.code == 1
    assert ran.summary["cases"] == 60
    assert len(state.read_text().split()) == 1


def test_the_only_device_is_lost(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(("device-lost",), prey)
    state = tmp_path / "lost"
    env = standin_env(**QUICK, faults=faults, state=state)
    ran = fuzz(env, tmp_path / "first", "aclnn", *PLAN, *PATIENT)
    assert ran.by_call == expected, ran.text
    assert ran.summary["problems"]
    assert ran.summary["cases"] < 60
    # The next run finds the device dead and says so, instead of finding faults in the operator.
    again = fuzz(env, tmp_path / "second", "aclnn", *PLAN, *PATIENT)
    assert again.code == 4, again.text
    assert again.found == []


def test_torch_npu_reports_faults_as_the_c_interface_does(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    faults, expected = planted(("device-fault", "flip"), prey)
    ran = fuzz(standin_env(**QUICK, faults=faults), tmp_path, "torch-npu", *PLAN, *PATIENT)
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert not ran.summary["problems"]


def test_a_dead_task_queue_is_left_behind(standin_env: Environment, prey: list[str], tmp_path: Path) -> None:
    """In a queue mode the status comes late and without its number, and the queue drops what follows in silence."""
    faults, expected = planted(("dead-queue",), prey)
    ran = fuzz(standin_env(**QUICK, faults=faults), tmp_path, "torch-npu:queue=1", *PLAN, *PATIENT)
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert not ran.summary["problems"]


def test_a_fault_that_is_seen_once_is_flaky(standin_env: Environment, tmp_path: Path) -> None:
    # Calls count in each process. The one that takes over after the fault also makes the calls before it once more, and must stay below.
    ran = fuzz(standin_env(**QUICK, faults="wrong-status:call==45"), tmp_path, "aclnn", *PLAN, *PATIENT)
    assert ran.found == []
    assert ran.summary["flaky"] == 1


def test_faults_of_checks(standin_env: Environment, tmp_path: Path) -> None:
    """A check that is missing, and one that answers with another status."""
    log = tmp_path / "calls.ndjson"
    plan = (*SHORT, "--mode", "invalid", *PATIENT)
    clean = fuzz(standin_env(log=log, **QUICK), tmp_path / "clean", "aclnn", *plan)
    assert clean.code == 0, clean.text
    refused = refused_calls(log, SOC)
    faults, expected = planted(("accept-invalid", "other-status"), refused)
    ran = fuzz(standin_env(faults=faults, **QUICK), tmp_path / "faulty", "aclnn", *plan)
    assert ran.code == 1, ran.text
    assert ran.by_call == expected
    assert went_on(ran, ran.summary["cases"])
