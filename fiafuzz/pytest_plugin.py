"""pytest plugin: corpus entries and case files as tests, and a backend as a fixture.

``pytest --fiafuzz-corpus corpus --fiafuzz-backend cpu`` runs every entry below the directory as an item, in a worker
process of its own, so that a crashing backend fails its item and nothing else. The fixtures ``fia_profile`` and
``fia_backend`` serve anyone's own tests. Nothing of fiafuzz is loaded until one of these is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import pytest

if TYPE_CHECKING:
    from fiafuzz.campaign.known import Ledger
    from fiafuzz.campaign.replay import Item, Replay
    from fiafuzz.campaign.results import Result
    from fiafuzz.campaign.schedulers.protocol import Scheduler
    from fiafuzz.campaign.wire import Hello
    from fiafuzz.model.case import Case

ENTRY, CASES = ".json", (".ndjson", ".jsonl")
DEFAULT_BACKEND = "cpu"
TIME_LIMIT = 30.0


class CaseFailed(AssertionError):
    """A case, or a kept entry, on which the backend does not do what it must."""


class FiaBackend:
    """A backend under a profile, in a worker process that is replaced when it dies. Closed with the session.

    ``name`` and ``profile`` say what it is; without a profile, each case's own holds.
    """

    def __init__(self, name: str, profile: Optional[str] = None, time_limit: float = TIME_LIMIT) -> None:
        self.name = name
        self.profile = profile
        self.time_limit = time_limit
        self._workers: dict[str, tuple[Scheduler, Hello]] = {}

    def replay(self, item: Item) -> Replay:
        """Run one item (fiafuzz.campaign.replay.Item) and judge it. BackendRefused when the backend cannot run here."""
        from fiafuzz.campaign.replay import replay_one

        profile = self._profile(item.case, item.profile)
        return replay_one(item, profile, *self._worker(profile), self.name, self.time_limit, dare=False)

    def run(self, case: Case, *, outputs: bool = True) -> Result:
        """Run one case; the result as fiafuzz sees it (kind, status code, judgement, outputs as bytes)."""
        from fiafuzz.campaign.verdict import foreseen, gives_values
        from fiafuzz.campaign.wire import Job
        from oracles.constraints.predict import predict

        profile = self._profile(case, None)
        valid = gives_values(foreseen(predict(case, profile)))
        scheduler, _ = self._worker(profile)
        return scheduler.run(Job(-3_000_000, case, judge=valid, outputs=outputs and valid), time_limit=self.time_limit).result

    def check(self, case: Case) -> Replay:
        """Assert that the backend does on a case what it must; what it cannot express skips the test. CaseFailed says what
        was expected and what came."""
        from fiafuzz.campaign.replay import Item

        found = self.replay(Item(case.digest, case))
        if found.status in ("unsupported", "skipped", "untestable"):
            pytest.skip(f"{self.name}: {found.text or found.status}")
        if found.status != "passing":
            raise CaseFailed(_told(found, self.name))
        return found

    def close(self) -> None:
        """End the worker processes."""
        for scheduler, _ in self._workers.values():
            scheduler.close()
        self._workers.clear()

    def _profile(self, case: Case, own: Optional[str]) -> str:
        from fiafuzz.model.profiles import profile_for

        return self.profile or own or profile_for(case.api, case.product).name

    def _worker(self, profile: str) -> tuple[Scheduler, Hello]:
        from fiafuzz.campaign.schedulers.local import LocalScheduler
        from fiafuzz.campaign.wire import Setup

        if profile not in self._workers:
            scheduler = LocalScheduler(Setup(self.name, profile), time_limit=self.time_limit)
            try:
                self._workers[profile] = scheduler, scheduler.start()
            except BaseException:
                scheduler.close()
                raise
        return self._workers[profile]


# ---- options and fixtures ----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and their ini forms."""
    group = parser.getgroup("fiafuzz", "corpus entries and cases of FusedInferAttentionScore as tests")
    group.addoption(
        "--fiafuzz-corpus", action="append", default=[], metavar="DIR", help="run the entries and case files below DIR as tests"
    )
    group.addoption("--fiafuzz-backend", metavar="NAME", help="backend that they, and the fixture fia_backend, run on")
    group.addoption("--fiafuzz-profile", metavar="NAME", help="profile that holds (default: that of each entry or case)")
    parser.addini("fiafuzz_corpus", "directories of entries and case files that are run as tests", type="paths", default=[])
    parser.addini("fiafuzz_backend", "backend that corpus entries and the fixture fia_backend run on", default="")
    parser.addini("fiafuzz_profile", "profile that holds", default="")


_CORPORA: pytest.StashKey[list[Path]] = pytest.StashKey()
_BACKENDS: pytest.StashKey[dict[tuple[str, Optional[str]], FiaBackend]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Take in the corpora; they are collected besides whatever else the call names."""
    given = [*(Path(config.invocation_params.dir) / d for d in config.getoption("fiafuzz_corpus")), *config.getini("fiafuzz_corpus")]
    folders = list(dict.fromkeys(folder.resolve() for folder in given))
    for folder in folders:
        if not folder.is_dir():
            raise pytest.UsageError(f"--fiafuzz-corpus: {folder} is no directory")
    config.stash[_CORPORA] = folders
    config.stash[_BACKENDS] = {}
    named = {Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args}
    config.args += [str(f) for f in folders if not any(f == n or n in f.parents or f in n.parents for n in named)]
    profile = _option(config, "profile")
    if profile:
        from fiafuzz.model.profiles import PROFILES

        if profile not in PROFILES:
            raise pytest.UsageError(f"--fiafuzz-profile: unknown profile {profile!r}; known: {', '.join(PROFILES)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all workers."""
    for backend in config.stash.get(_BACKENDS, {}).values():
        backend.close()


def _option(config: pytest.Config, name: str) -> Optional[str]:
    return config.getoption(f"fiafuzz_{name}") or config.getini(f"fiafuzz_{name}") or None


def backend_of(config: pytest.Config, name: str, profile: Optional[str]) -> FiaBackend:
    """The session's backend of that name and profile."""
    backends = config.stash[_BACKENDS]
    if (name, profile) not in backends:
        backends[name, profile] = FiaBackend(name, profile)
    return backends[name, profile]


@pytest.fixture(scope="session")
def fia_profile(pytestconfig: pytest.Config) -> str:
    """The profile of --fiafuzz-profile (ini: fiafuzz_profile), or the default one."""
    from fiafuzz.model.profiles import DEFAULT_PROFILE

    return _option(pytestconfig, "profile") or DEFAULT_PROFILE


@pytest.fixture(scope="session")
def fia_backend(pytestconfig: pytest.Config) -> FiaBackend:
    """The backend of --fiafuzz-backend (ini: fiafuzz_backend), or cpu: ``fia_backend.check(case)`` asserts that it does what
    it must, ``fia_backend.run(case)`` gives the result. It runs in a process of its own."""
    return backend_of(pytestconfig, _option(pytestconfig, "backend") or DEFAULT_BACKEND, _option(pytestconfig, "profile"))


# ---- entries and cases as items ----------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Optional[pytest.Collector]:
    """Entries (.json) and case files (.ndjson, .jsonl) below a corpus."""
    corpora = parent.config.stash.get(_CORPORA, [])
    if file_path.suffix not in (ENTRY, *CASES) or file_path.name.startswith("."):
        return None
    root = next((c for c in corpora if c in file_path.resolve().parents), None)
    if root is None:
        return None
    collector: CorpusFile = CorpusFile.from_parent(parent, path=file_path)
    collector.root = root
    return collector


class CorpusFile(pytest.File):
    """A file of the corpus: one entry, or cases, one a line."""

    root: Path

    def collect(self) -> Iterator[CorpusItem]:
        """One item an entry or case; a file that cannot be read is an item that fails."""
        from fiafuzz.campaign.corpus import BadEntry, read_entry
        from fiafuzz.campaign.replay import Item, entry_item
        from fiafuzz.model.records import BadRecord, ReadError, read_records

        if self.path.suffix == ENTRY:
            entry = read_entry(self.path)
            if not isinstance(entry, BadEntry):
                yield self._item(entry.id, entry_item(entry))
                return
        names: dict[str, int] = {}
        try:
            for record in read_records(str(self.path)):
                if isinstance(record, BadRecord):
                    yield self._item(Path(str(record.where)).name, None, str(record))
                    continue
                expected = record.extra.get("expected")
                names[record.name] = names.get(record.name, 0) + 1
                name = record.name if names[record.name] == 1 else f"{record.name}#{names[record.name]}"
                yield self._item(name, Item(name, record.case, record.profile, None, expected if isinstance(expected, dict) else None))
        except ReadError as error:
            yield self._item(self.path.name, None, str(error))

    def _item(self, name: str, item: Optional[Item], problem: str = "") -> CorpusItem:
        found: CorpusItem = CorpusItem.from_parent(self, name=_printable(name))
        found.item, found.problem, found.root = item, problem, self.root
        return found


class CorpusItem(pytest.Item):
    """One entry or case."""

    item: Optional[Item]
    problem: str
    root: Path

    def runtest(self) -> None:
        """Run it again. Passing and fixed entries pass; a known issue is an expected failure until it is fixed."""
        if self.item is None:
            raise CaseFailed(self.problem)
        entry = self.item.entry
        name = _option(self.config, "backend") or (entry.signature.backend if entry is not None else DEFAULT_BACKEND)
        found = backend_of(self.config, name, _option(self.config, "profile")).replay(self.item)
        known = None
        if entry is not None and entry.signature.backend == name:
            ledger = _ledger(self.root)
            known = ledger.replayed(entry, found.status)
            if known and found.status == "fixed":
                raise CaseFailed(f"{entry.id} is covered by the known issue {known}, and no longer fails: remove it from known.toml")
        if found.disagrees:
            raise CaseFailed(f"{self.item.name}: {found.disagrees}")
        if found.status in ("unsupported", "skipped", "untestable"):
            pytest.skip(f"{name}: {found.text or found.status}")
        if found.status in ("passing", "fixed"):
            return
        if known:
            pytest.xfail(f"known issue {known}: {found.text}")
        raise CaseFailed(_told(found, name))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What was expected and what came, without a Python traceback."""
        from fiafuzz.campaign.schedulers.protocol import SchedulerError

        if isinstance(excinfo.value, (CaseFailed, SchedulerError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, Optional[int], str]:
        """Where it stands."""
        return self.path, None, self.name


def _printable(name: str) -> str:
    from fiafuzz.campaign.results import clean

    return clean(name, 120).replace("\n", " ").replace("::", ":") or "unnamed"


def _ledger(root: Path) -> Ledger:
    from fiafuzz.campaign.known import KNOWN_FILE, KnownError, Ledger, read_known

    try:
        return Ledger(read_known(root / KNOWN_FILE))
    except KnownError as error:
        raise CaseFailed(str(error)) from None


def _told(found: Replay, backend: str) -> str:
    """A failing replay as lines: what was expected, what came, how to run it again."""
    from fiafuzz.campaign.sequence_shrink import describe_before

    expected = found.foreseen.verdict
    if expected == "reject":
        expected += f" with {' or '.join(map(str, found.foreseen.codes))}"
    got = found.result.kind + (f" with {found.result.code}" if found.result.code is not None else "") if found.result else found.status
    lines = [
        f"{found.item.name} is {found.status} on {backend} ({found.profile}): {found.text or found.verdict.code}",
        f"  expected   {expected}" + (f" ({', '.join(found.foreseen.rules)})" if found.foreseen.rules else ""),
        f"  got        {got}",
    ]
    entry = found.item.entry
    if entry is not None:
        lines += [f"  {'differs in' if i == 0 else '          '} {text}" for i, text in enumerate(entry.differences)]
        lines += [f"  after      {text}" for text in describe_before(entry.before, entry.case)]
        lines.append(f"  reproduce  {entry.reproduce}")
    return "\n".join(lines)
