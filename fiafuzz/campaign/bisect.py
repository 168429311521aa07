"""Bisect: which build of an ordered list is the first bad one.

The search asks one build at a time and writes every answer down before it asks the next, so that a killed search goes on
where it stopped: the builds it asks depend on the answers alone. Builds that cannot give an answer (they do not run at all,
or a call that must work fails on them too) are told apart from builds on which the case fails; the search goes round them.
Where it cannot get past them it names the range that remains.

A search for the build that *repaired* something is the same with the ends exchanged: what is looked for is the first build
that answers like the later end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional

import msgspec

from .corpus import read_regular
from .whole_files import write_whole

STATE_VERSION = 1
MAX_STATE_BYTES = 64 * 1024 * 1024
GOOD, BAD, SKIP, BROKEN = "good", "bad", "skip", "broken"
ANSWERS: tuple[str, ...] = (GOOD, BAD, SKIP, BROKEN)
"""good and bad: the build was tested. skip: the command said that it cannot be tested. broken: it does not run at all, or
the call that must work fails on it."""


class BisectError(ValueError):
    """A search that cannot be made or gone on with; the text is one line."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one build said. ``code``: exit code of the deciding run (None: it was not started or was killed); ``failed`` of
    ``tries`` runs failed; ``seconds`` in all; ``text`` in words."""

    answer: str
    text: str = ""
    code: Optional[int] = None
    failed: int = 0
    tries: int = 1
    seconds: float = 0.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched. ``first`` and ``last`` are the two ends as the list has them, oldest first; ``first_answer`` is what
    the older end is known to answer (good when a fault came in, bad when it was repaired). ``command``, ``case`` and
    ``settings`` say how builds are asked; they are part of the question, since answers to another one do not count."""

    builds: tuple[str, ...]
    first: str
    last: str
    first_answer: str
    command: tuple[str, ...]
    case: str = ""
    settings: dict[str, str] = {}

    @property
    def last_answer(self) -> str:
        """What the newer end is known to answer."""
        return BAD if self.first_answer == GOOD else GOOD

    @property
    def id(self) -> str:
        """A short stable name of the question."""
        return hashlib.blake2b(msgspec.json.encode(self, order="sorted"), digest_size=6).hexdigest()


class State(msgspec.Struct):
    """The answers so far, by build; ``canary`` says whether the call that must work can be relied on (None: not tried)."""

    question: Question
    answers: dict[str, Answer] = {}
    ends: dict[str, Answer] = {}
    canary: Optional[bool] = None
    fiafuzz_bisect: int = STATE_VERSION


class Result(msgspec.Struct, frozen=True):
    """What the search came to. ``found``: the first build that answers like the newer end; None when ``remaining`` holds
    more than one candidate, in order. ``before``: the last build known to answer like the older end. ``untested``: builds
    in between that gave no answer."""

    found: Optional[str]
    before: str
    remaining: tuple[str, ...]
    untested: dict[str, Answer]
    steps: int


def question_of(builds: Sequence[str], good: str, bad: str, command: Sequence[str], case: str, settings: Mapping[str, str]) -> Question:
    """The question of a search. BisectError when the list of builds or the two ends make no sense."""
    if not builds:
        raise BisectError("the list of builds is empty")
    twice = next((b for i, b in enumerate(builds) if b in builds[:i]), None)
    if twice is not None:
        raise BisectError(f"build {twice!r} stands twice in the list")
    for name, build in (("good", good), ("bad", bad)):
        if build not in builds:
            raise BisectError(f"the {name} build {build!r} is not in the list of builds")
    if good == bad:
        raise BisectError(f"build {good!r} cannot be both good and bad")
    older_is_good = builds.index(good) < builds.index(bad)
    first, last = (good, bad) if older_is_good else (bad, good)
    span = tuple(builds[builds.index(first) : builds.index(last) + 1])
    return Question(
        builds=span,
        first=first,
        last=last,
        first_answer=GOOD if older_is_good else BAD,
        command=tuple(command),
        case=case,
        settings=dict(settings),
    )


# ---- the search -----------------------------------------------------------------------------------------------------


def bounds(question: Question, answers: Mapping[str, Answer]) -> tuple[int, int]:
    """The places of the last build known to answer like the older end, and of the first known to answer like the newer
    one."""
    low, high = 0, len(question.builds) - 1
    for place, build in enumerate(question.builds):
        found = answers.get(build)
        if found is None:
            continue
        if found.answer == question.first_answer:
            low = max(low, place)
        elif found.answer == question.last_answer:
            high = min(high, place)
    if low >= high:
        raise BisectError(
            f"{question.builds[low]!r} answers {question.first_answer} but {question.builds[high]!r} before it answers"
            f" {question.last_answer}: the builds do not change sides once"
        )
    return low, high


def next_build(question: Question, answers: Mapping[str, Answer]) -> Optional[str]:
    """The build to ask next: the untried one nearest to the middle of what remains, the older one of two; None when
    nothing more can be learnt."""
    low, high = bounds(question, answers)
    middle = (low + high) // 2
    untried = [p for p in range(low + 1, high) if question.builds[p] not in answers]
    if not untried:
        return None
    return question.builds[min(untried, key=lambda p: (abs(p - middle), p))]


def result_of(question: Question, answers: Mapping[str, Answer]) -> Result:
    """What is known after these answers."""
    low, high = bounds(question, answers)
    between = [question.builds[p] for p in range(low + 1, high)]
    remaining = (*between, question.builds[high])
    untested = {build: answers[build] for build in between if build in answers}
    found = remaining[0] if len(remaining) == 1 else None
    return Result(found, question.builds[low], remaining, untested, len(answers))


def steps_left(question: Question, answers: Mapping[str, Answer]) -> int:
    """How many more builds will be asked at most, if all of them give an answer."""
    low, high = bounds(question, answers)
    untried = sum(question.builds[p] not in answers for p in range(low + 1, high))
    return untried.bit_length()


Ask = Callable[[str], Answer]
"""Tests one build."""


def search(state: State, ask: Ask, save: Callable[[State], None]) -> Iterator[tuple[str, Answer]]:
    """Ask builds until nothing more can be learnt; each answer is saved before it is handed on. BisectError when the
    answers contradict each other."""
    while True:
        build = next_build(state.question, state.answers)
        if build is None:
            return
        answer = ask(build)
        if answer.answer not in ANSWERS:
            raise BisectError(f"unknown answer {answer.answer!r}")
        state.answers[build] = answer
        save(state)
        yield build, answer


# ---- the state on disk ----------------------------------------------------------------------------------------------


def load_state(path: Path, question: Question) -> State:
    """The state in a file, or a new one when there is no file. BisectError when it cannot be read, or is about another
    question: then the first thing in which that differs is named."""
    state = _read(path)
    if state is None:
        return State(question)
    if state.fiafuzz_bisect != STATE_VERSION:
        raise BisectError(f"{path}: state version {state.fiafuzz_bisect} is not {STATE_VERSION}")
    for name in ("builds", "first", "last", "first_answer", "command", "case", "settings"):
        if getattr(state.question, name) != getattr(question, name):
            raise BisectError(f"{path}: belongs to another search ({name} differs); begin anew with --fresh or choose another --state")
    known = set(question.builds)
    strange = [b for b, a in state.answers.items() if b not in known or a.answer not in ANSWERS]
    if strange:
        raise BisectError(f"{path}: has an answer for {strange[0]!r} that cannot be")
    return state


def forget_state(path: Path) -> None:
    """Remove the state in a file, if there is one. BisectError when the file holds something else, or cannot be removed."""
    if _read(path) is not None:
        try:
            path.unlink()
        except OSError as error:
            raise BisectError(f"{path}: {error.strerror or error}") from None


def _read(path: Path) -> Optional[State]:
    try:
        data = read_regular(path, MAX_STATE_BYTES)
        return msgspec.json.decode(data, type=State)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BisectError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise BisectError(f"{path}: not the state of a bisection: {' '.join(str(error).split())[:200]}") from None


def save_state(path: Path, state: State) -> None:
    """Write the state whole or not at all. BisectError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    except OSError as error:
        raise BisectError(f"{path}: {error.strerror or error}") from None
