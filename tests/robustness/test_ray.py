"""Ray: a real cluster of several nodes on this machine. The same cases and findings as locally, and actors, nodes and cases
that die or hang are told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fiafuzz.campaign.schedulers.protocol import BackendRefused, Completed
from fiafuzz.campaign.wire import Job, Setup

from . import device_backends, process_backends
from .plugin import install
from .test_campaigns import alive, gone
from .test_workers import call, collect
from .test_workers_together import outcome

if os.environ.get("FIAFUZZ_REQUIRE_ALL"):
    import ray
    import ray.cluster_utils as cluster_utils
else:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fiafuzz[ray]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed with what its test clusters need")

from fiafuzz.campaign.schedulers.ray import RayScheduler

pytestmark = pytest.mark.slow
STORE = 80 << 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the bad backends are installed and leave word; the nodes of the cluster see it too."""
    where = tmp_path_factory.mktemp("ray")
    site = where / "site"
    site.mkdir()
    install(site)
    device_backends.install(site)
    process_backends.install(site)
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(site))
    patch.setenv(device_backends.DIRECTORY, str(where))
    patch.setenv(process_backends.DIRECTORY, str(where))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    yield where
    patch.undo()


@pytest.fixture(scope="module")
def cluster(shared: Path) -> Iterator[Any]:
    """Two nodes with a core and a device each; a third can be added."""
    found = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "resources": {"NPU": 1}, "object_store_memory": STORE, "include_dashboard": False},
    )
    found.add_node(num_cpus=1, resources={"NPU": 1}, object_store_memory=STORE)
    found.connect()
    yield found
    ray.shutdown()
    found.shutdown()


def started(name: str, time_limit: float = 60.0) -> RayScheduler:
    """A started scheduler with all its actors up."""
    scheduler = RayScheduler(Setup(name, "950-v5"), time_limit=time_limit)
    scheduler.start()
    deadline = time.monotonic() + 200
    while not all(p.ready for p in scheduler._places):
        assert time.monotonic() < deadline
        scheduler.poll(0.1)
    return scheduler


@pytest.fixture(scope="module")
def pool(cluster: Any) -> Iterator[RayScheduler]:
    """Two actors on the cores of the cluster, with a backend that can do everything badly."""
    scheduler = started("process-many")
    yield scheduler
    scheduler.close()


def results(scheduler: RayScheduler, count: int) -> dict[int, Completed]:
    """By job, so many results."""
    found = collect(scheduler, count, 120.0)  # type: ignore[arg-type]
    assert len({d.job.id for d in found}) == len(found) == count
    return {d.job.id: d for d in found}


def test_cases_and_findings_are_those_of_a_local_run(cluster: Any, tmp_path: Path) -> None:
    here = outcome(tmp_path, "nasty-wrong-shape", 1, max_cases=30, shrink_runs=20)
    there = outcome(tmp_path, "nasty-wrong-shape", 0, max_cases=30, shrink_runs=20, ray="auto")
    assert here == there and here[1]


def test_bad_cases_are_blamed_and_no_others(pool: RayScheduler) -> None:
    assert len(pool._places) == 2 and pool._resource == "", "one actor a core, for a backend without devices"
    for i in range(12):
        pool.submit(Job(i, call(5 if i in (2, 7) else 2, seed=i)))
    done = results(pool, 12)
    assert {i: d.result.kind for i, d in done.items()} == {i: "crash" if i in (2, 7) else "ok" for i in range(12)}
    assert done[2].result.signal == signal.SIGABRT
    assert len(pool.restarts()) == 2


def test_a_hang_is_ended_at_its_limit(pool: RayScheduler) -> None:
    assert pool.run(Job(1, call(7)), time_limit=0.5).result.kind == "hang"
    assert pool.run(Job(2, call()), fresh=True).result.kind == "ok"
    assert len(pool.restarts()) >= 1


def test_the_case_of_a_killed_actor_is_run_again_alone(pool: RayScheduler, shared: Path) -> None:
    for i in range(8):
        pool.submit(Job(i, call(3 if i == 0 else 2, seed=i)))
    place = next(p.number for p in pool._places if any(c.job and c.job.id == 0 for c in p.calls))
    early = collect(pool, 7, 120.0)  # type: ignore[arg-type]
    assert sorted(d.job.id for d in early) == list(range(1, 8)), "nothing waits behind the long case"
    ray.kill(pool._places[place].actor)
    deadline = time.monotonic() + 120
    while not pool._deaths:
        assert pool.poll(0.1) == [] and time.monotonic() < deadline
    (shared / "release").touch()
    try:
        last = results(pool, 1)
    finally:
        (shared / "release").unlink()
    assert last[0].result.kind == "ok"
    assert any("its actor died" in r.reason for r in pool.restarts())
    assert pool.outstanding == 0 and not pool._deaths


def test_a_case_whose_actor_dies_twice_is_blamed(pool: RayScheduler) -> None:
    pool.submit(Job(0, call(3)))
    found: list[Completed] = []
    killed, deadline = [], time.monotonic() + 200
    while not found:
        assert time.monotonic() < deadline
        for place in pool._places:
            if place.calls and place.calls[0].job and place.calls[0].job.id == 0 and place.actor not in killed:
                killed.append(place.actor)
                ray.kill(place.actor)
        found += pool.poll(0.1)
    assert len(killed) == 2
    assert found[0].result.kind == "crash" and "died twice" in found[0].result.message
    assert pool.run(Job(1, call())).result.kind == "ok"


def test_devices_and_nodes_that_go_away(cluster: Any, shared: Path) -> None:
    """One actor a device. A node that goes away takes no case with it; a device that dies is given up."""
    node = cluster.add_node(num_cpus=1, resources={"NPU": 1}, object_store_memory=STORE)
    cluster.wait_for_nodes()
    scheduler = started("device-killer")
    try:
        assert len(scheduler._places) == 3 and scheduler._resource == "NPU"
        assert ray.available_resources().get("NPU", 0) == 0, "each actor holds a device"
        for i in range(20):
            scheduler.submit(Job(i, call(seed=i)))
        cluster.remove_node(node, allow_graceful=False)
        for i in range(20, 40):
            scheduler.submit(Job(i, call(seed=i)))
        assert {d.result.kind for d in results(scheduler, 40).values()} == {"ok"}
        deadline = time.monotonic() + 120
        while sum(p.ready for p in scheduler._places) > 2:
            assert time.monotonic() < deadline
            # That a node is gone shows when its actor is asked for something: ask all three.
            for i in range(200, 206):
                scheduler.submit(Job(i, call(seed=i)))
            assert {d.result.kind for d in results(scheduler, 6).values()} == {"ok"}
        scheduler.restarts()
        bad = scheduler.run(Job(100, call(3)))
        assert bad.result.kind == "crash" and "does not answer" in scheduler.given_up(bad.worker)
        assert [r.given_up for r in scheduler.restarts()].count(True) == 1
        assert sum(p.ready for p in scheduler._places) == 1
        # Each node calls its only device 0, so the other one is dead as well, and is found out by the next case.
        scheduler.submit(Job(101, call()))
        assert results(scheduler, 1)[101].result.kind == "lost"
        assert not any(p.ready for p in scheduler._places)
    finally:
        scheduler.close()
        for path in shared.glob("dead-*"):
            path.unlink()


def test_a_backend_that_refuses_says_why(cluster: Any) -> None:
    scheduler = RayScheduler(Setup("nasty-refuses", "950-v5"), 1)
    with pytest.raises(BackendRefused, match="plug one in"):
        scheduler.start()
    scheduler.close()


def test_no_cluster_at_an_address_is_a_refusal_in_one_line() -> None:
    script = (
        "from fiafuzz.campaign.schedulers.ray import RayScheduler\n"
        "from fiafuzz.campaign.wire import Setup\n"
        "try:\n    RayScheduler(Setup('cpu', '950-v5'), address='127.0.0.1:1').start()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=300)
    assert done.stdout.startswith("BackendRefused no Ray cluster at 127.0.0.1:1"), done
    assert done.stdout.count("\n") == 1


def test_a_cluster_of_this_machine_is_started_and_leaves_nothing(tmp_path: Path, shared: Path) -> None:
    """As users run it: the summary alone on standard output, and no process or file of Ray's is left, even when it is killed."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path), TMPDIR="/tmp", RAY_ADDRESS="local")
    line = [sys.executable, "-m", "fiafuzz.cli.main", "fuzz", "--backend", "process-slow", "--ray", "auto", "-n", "6", "--seed", "1",
            "--mode", "valid", "--phases", "bulk", "--json", "--corpus", str(tmp_path / "corpus"), "--out", str(tmp_path / "run")]
    (shared / "release").touch()
    try:
        before = set(Path("/tmp").glob("fiafuzz-ray-*"))
        done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done
        assert done.stdout.startswith("{") and done.stdout.count("\n") == 1
        assert set(Path("/tmp").glob("fiafuzz-ray-*")) <= before
    finally:
        (shared / "release").unlink()
    killed = subprocess.Popen([*line[:-1], str(tmp_path / "again"), "--time-limit", "10m"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=env, cwd=tmp_path)
    try:
        marked: set[int] = set()
        deadline = time.monotonic() + 200
        while not any(b"ray::Host" in name for name in map(title, marked)):
            assert time.monotonic() < deadline and killed.poll() is None
            marked = descendants(killed.pid)
            time.sleep(0.1)
    finally:
        killed.kill()
        killed.wait(60)
    assert gone(marked, 60.0), {pid: title(pid) for pid in marked if alive(pid)}
    deadline = time.monotonic() + 60
    while not set(Path("/tmp").glob("fiafuzz-ray-*")) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def title(pid: int) -> bytes:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(root: int) -> set[int]:
    """Living processes below one."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {root}


def test_without_ray_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import fiafuzz.campaign.schedulers.ray_cluster as ray_cluster

    monkeypatch.setattr(ray_cluster, "is_there", lambda: False)
    with pytest.raises(BackendRefused, match=r"pip install 'fiafuzz\[ray\]'"):
        RayScheduler(Setup("cpu", "950-v5"))
