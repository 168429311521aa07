"""Bisect: the search, its state on disk, how builds are asked."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fiafuzz.campaign.bisect import (
    BAD,
    BROKEN,
    GOOD,
    SKIP,
    Answer,
    BisectError,
    Question,
    State,
    bounds,
    forget_state,
    load_state,
    next_build,
    question_of,
    result_of,
    save_state,
    search,
    steps_left,
)
from fiafuzz.campaign.bisect_run import Asker, Command, Ran, Stopped, answer_of, run_command


def question(count: int, *, repaired: bool = False) -> Question:
    """A search over so many builds, b0 to the last."""
    builds = [f"b{i}" for i in range(count)]
    ends = (builds[-1], builds[0]) if repaired else (builds[0], builds[-1])
    return question_of(builds, *ends, ["run", "{build}"], "", {})


class Killed(Exception):
    """The search is killed here."""


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, dict[int, str], bool]:
    """A number of builds, the first one on the other side, builds without an answer, and the direction."""
    count = draw(st.integers(2, 70))
    first = draw(st.integers(1, count - 1))
    mute = draw(st.dictionaries(st.integers(1, max(1, count - 2)), st.sampled_from([SKIP, BROKEN]), max_size=12)) if count > 2 else {}
    return count, first, {k: v for k, v in mute.items() if 0 < k < count - 1}, draw(st.booleans())


@settings(max_examples=150, deadline=None)
@given(world=worlds(), data=st.data())
def test_the_search_is_right_short_and_survives_kills(
    tmp_path_factory: pytest.TempPathFactory, world: tuple[int, int, dict[int, str], bool], data: st.DataObject
) -> None:
    count, first, mute, repaired = world
    asked: list[str] = []
    path = tmp_path_factory.mktemp("bisect") / "state.json"
    what = question(count, repaired=repaired)

    def ask(build: str) -> Answer:
        asked.append(build)
        place = int(build[1:])
        if place in mute:
            return Answer(mute[place])
        return Answer(what.last_answer if place >= first else what.first_answer)

    # Uninterrupted.
    straight = State(what)
    for _ in search(straight, ask, lambda s: None):
        pass
    order, asked[:] = list(asked), []
    # Killed before an answer is there, after it is there but not yet written, and after it is written, at random.
    while True:
        state = load_state(path, what)
        moment = data.draw(st.sampled_from(["never", "before", "after", "written"]))

        def dying(build: str, moment: str = moment) -> Answer:
            if moment == "before":
                raise Killed
            answer = ask(build)
            if moment == "after":
                raise Killed
            return answer

        try:
            for _ in search(state, dying if len(asked) < 300 else ask, lambda s: save_state(path, s)):
                if moment == "written":
                    raise Killed
            break
        except Killed:
            assume(len(asked) < 400)
    killed = load_state(path, what).answers if path.exists() else {}
    assert killed == straight.answers and list(killed) == order  # the same builds in the same order, none twice in the answers
    result = result_of(what, killed)
    told = [i for i in range(count) if i not in mute]
    if result.found is not None:
        assert result.found == f"b{first}"
    else:
        assert f"b{first}" in result.remaining and set(result.remaining[:-1]) <= {f"b{i}" for i in mute}
    assert set(result.untested) == set(result.remaining[:-1])
    assert result.before == f"b{max(i for i in told if i < first)}"
    answering = sum(a.answer in (GOOD, BAD) for a in killed.values())
    if not mute:
        assert len(killed) <= (count - 2).bit_length() == steps_left(what, {})
    assert answering <= count.bit_length() + len(mute) and len(killed) - answering <= len(mute)


def test_it_asks_no_more_than_log2_builds() -> None:
    for count in (2, 3, 4, 5, 17, 64, 65, 1000):
        worst = 0
        for first in range(1, count, max(1, count // 40)):
            state = State(question(count))
            list(search(state, lambda b, f=first: Answer(BAD if int(b[1:]) >= f else GOOD), lambda s: None))
            assert result_of(state.question, state.answers).found == f"b{first}"
            worst = max(worst, len(state.answers))
        assert worst <= (count - 2).bit_length()  # ceil(log2(count - 1))


def test_contradictions_are_told() -> None:
    answers = {"b2": Answer(BAD), "b5": Answer(GOOD)}
    with pytest.raises(BisectError, match="do not change sides once"):
        next_build(question(9), answers)


def test_nothing_to_ask_between_neighbours() -> None:
    what = question(2)
    assert next_build(what, {}) is None and steps_left(what, {}) == 0
    assert result_of(what, {}).found == "b1" and bounds(what, {}) == (0, 1)


@pytest.mark.parametrize(
    ("builds", "good", "bad", "text"),
    [
        ([], "a", "b", "empty"),
        (["a", "b", "a"], "a", "b", "stands twice"),
        (["a", "b"], "c", "b", "the good build 'c' is not"),
        (["a", "b"], "a", "c", "the bad build 'c' is not"),
        (["a", "b"], "a", "a", "both good and bad"),
    ],
)
def test_ends_that_make_no_sense(builds: list[str], good: str, bad: str, text: str) -> None:
    with pytest.raises(BisectError, match=text):
        question_of(builds, good, bad, ["x"], "", {})


def test_builds_outside_the_ends_are_left_out() -> None:
    what = question_of(["a", "b", "c", "d", "e"], "b", "d", ["x"], "", {})
    assert what.builds == ("b", "c", "d") and what.first_answer == GOOD
    back = question_of(["a", "b", "c", "d", "e"], "d", "b", ["x"], "", {})
    assert (back.first, back.last, back.first_answer, back.last_answer) == ("b", "d", BAD, GOOD)


# ---- the state ------------------------------------------------------------------------------------------------------


def test_a_state_belongs_to_its_question(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state(path, State(question(5), {"b2": Answer(GOOD)}))
    assert load_state(path, question(5)).answers == {"b2": Answer(GOOD)}
    for other, name in (
        (question(6), "builds"),
        (msgspec.structs.replace(question(5), command=("y",)), "command"),
        (msgspec.structs.replace(question(5), settings={"tries": "3"}), "settings"),
    ):
        with pytest.raises(BisectError, match=rf"{name} differs.*--fresh"):
            load_state(path, other)
    assert question(5).id != question(6).id and question(5).id == question(5).id


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"\xff\xfe", b'{"question": 5}', b"[" * 20000])
def test_a_state_that_cannot_be_read(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(junk)
    with pytest.raises(BisectError) as error:
        load_state(path, question(5))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_answers_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for answers in ({"nobody": Answer(GOOD)}, {"b2": Answer("perhaps")}):
        save_state(path, State(question(5), answers))
        with pytest.raises(BisectError, match="cannot be"):
            load_state(path, question(5))
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "fiafuzz_bisect": 7}))
    with pytest.raises(BisectError, match="version 7"):
        load_state(path, question(5))


def test_only_a_state_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    forget_state(path)
    save_state(path, State(question(5)))
    forget_state(path)
    assert not path.exists()
    path.write_text('{"fiafuzz_entry": 1}')
    with pytest.raises(BisectError, match="not the state"):
        forget_state(path)
    assert path.exists()


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BisectError, match="file"):
        save_state(tmp_path / "file" / "state.json", State(question(3)))


# ---- asking a build -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (0, GOOD),
        (1, BAD),
        (6, BAD),
        (124, BAD),
        (125, SKIP),
        (3, BROKEN),
        (4, BROKEN),
        (126, BROKEN),
        (127, BROKEN),
        (-9, BROKEN),
        (139, BROKEN),
    ],
)
def test_exit_codes(code: int, answer: str) -> None:
    assert answer_of(Ran(code, "first\nlast \x1b[0m\n", 1.0)).answer == answer
    assert "\x1b" not in answer_of(Ran(code, "\x1b[0m", 1.0)).text


def test_codes_that_stop_the_search() -> None:
    for code in (2, 5):
        with pytest.raises(BisectError, match="no such option"):
            answer_of(Ran(code, "no such option", 1.0))
    with pytest.raises(Stopped):
        answer_of(Ran(130, "", 1.0))
    assert "SIGSEGV" in answer_of(Ran(-11, "", 0.0)).text and "SIGSEGV" in answer_of(Ran(139, "", 0.0)).text
    assert answer_of(Ran(None, "", 1.0, "it took longer than 5 s")) == Answer(BROKEN, "it took longer than 5 s", seconds=1.0)


def test_a_replay_that_tested_nothing_is_no_good_answer() -> None:
    def line(status: str) -> str:
        return json.dumps({"name": "F101-00", "status": status, "backend": "x", "profile": "p", "text": ""}) + "\n"

    assert answer_of(Ran(0, line("unsupported") + "1 unsupported\n", 1.0)).answer == SKIP
    assert answer_of(Ran(0, line("skipped") + line("untestable"), 1.0)).answer == SKIP
    for output in (line("fixed"), line("unsupported") + line("passing"), '{"status": "skipped"}', "{", "[]", ""):
        assert answer_of(Ran(0, output, 1.0)).answer == GOOD
    assert answer_of(Ran(1, line("failing"), 1.0)).answer == BAD


def test_templates() -> None:
    command = Command.parse("run --build={build} '{case}' \"a b\" {build}{case} {other}")
    assert command.names_build and command.names_case
    assert command.filled("x {case}", "/c {build}.json") == (
        "run",
        "--build=x {case}",
        "/c {build}.json",
        "a b",
        "x {case}/c {build}.json",
        "{other}",
    )
    assert not Command.parse("run").names_build
    for wrong in ("", "  ", "run 'open"):
        with pytest.raises(BisectError, match="command"):
            Command.parse(wrong)


def scripted(codes: dict[tuple[str, str], list[int]]) -> tuple[Asker, list[tuple[str, ...]]]:
    """An asker whose commands end with codes in turn, by build and case; the calls are listed."""
    calls: list[tuple[str, ...]] = []

    def run(words: Sequence[str], limit: float) -> Ran:
        calls.append(tuple(words[1:]))
        left = codes[(words[1], words[2])]
        return Ran(left.pop(0) if len(left) > 1 else left[0], "", 1.0)

    return Asker(Command(("run", "{build}", "{case}")), "case", "canary", 5.0, run=run), calls


def test_a_failure_is_believed_when_the_call_that_must_work_does() -> None:
    asker, calls = scripted({("a", "case"): [1], ("a", "canary"): [0], ("b", "case"): [1], ("b", "canary"): [1], ("c", "case"): [0]})
    assert asker("a").answer == BAD and asker("b").answer == BROKEN and asker("c").answer == GOOD
    assert "must work gives bad" in asker("b").text
    assert ("c", "canary") not in calls  # a build that passes the case runs
    asker.canary = ""
    assert asker("b").answer == BAD


def test_a_flaky_build_is_bad_when_it_fails_once() -> None:
    asker, calls = scripted({("a", "case"): [0, 0, 1], ("a", "canary"): [0], ("b", "case"): [0], ("c", "case"): [0, 125]})
    asker.tries = 4
    found = asker("a")
    assert (found.answer, found.tries, found.failed) == (BAD, 3, 1) and "run 3 of 4" in found.text
    assert asker("b").tries == 4 and calls.count(("b", "case")) == 4
    assert asker("c").answer == SKIP


@settings(max_examples=60, deadline=None)
@given(count=st.integers(2, 40), tries=st.integers(1, 4), data=st.data())
def test_flaky_builds_do_not_lead_astray(count: int, tries: int, data: st.DataObject) -> None:
    """Bad builds fail in one of their first runs only; broken ones fail whatever they are given; the answer stays right."""
    first = data.draw(st.integers(1, count - 1))
    fails_in = {place: data.draw(st.integers(1, tries)) for place in range(first, count)}
    broken = data.draw(st.sets(st.integers(1, count - 2), max_size=4)) if count > 2 else set()
    runs: dict[tuple[str, str], int] = {}

    def run(words: Sequence[str], limit: float) -> Ran:
        build, case = words[1], words[2]
        runs[(build, case)] = runs.get((build, case), 0) + 1
        place = int(build[1:])
        if place in broken:
            return Ran(1, "", 0.0)
        return Ran(int(case == "case" and place >= first and runs[(build, case)] == fails_in[place]), "", 0.0)

    asker = Asker(Command(("run", "{build}", "{case}")), "case", "canary", 5.0, tries=tries, run=run)
    state = State(question(count))
    answers = dict(search(state, asker, lambda s: None))
    result = result_of(state.question, state.answers)
    assert {a.answer for b, a in answers.items() if int(b[1:]) in broken} <= {BROKEN}
    assert f"b{first}" in result.remaining and (result.found in (None, f"b{first}"))
    assert result.found is not None or set(result.untested) <= {f"b{i}" for i in broken}
    assert all(number <= tries for number in runs.values())


# ---- running a command ----------------------------------------------------------------------------------------------


def python(code: str) -> tuple[str, ...]:
    """A command that runs a piece of Python."""
    return (sys.executable, "-c", code)


def test_a_command_runs_without_a_shell_and_with_empty_input() -> None:
    ran = run_command(python("import sys; print(sys.argv, repr(sys.stdin.read())); print('err', file=sys.stderr); sys.exit(7)"), 60)
    assert ran.code == 7 and "''" in ran.output and "err" in ran.output
    assert run_command((*python("import sys; print(sys.argv[1])"), "$HOME; echo x"), 60).output == "$HOME; echo x\n"


def test_a_flood_of_output_is_cut() -> None:
    ran = run_command(python("import sys\nfor i in range(3000): sys.stdout.write('x' * 1000 + '\\n')\nprint('the end')"), 60)
    assert ran.code == 0 and len(ran.output) <= 64 * 1024 and ran.output.endswith("the end\n")


def test_a_command_that_cannot_be_started() -> None:
    ran = run_command(("/no/such/program", "x"), 60)
    assert ran.code is None and "/no/such/program cannot be started" in ran.why
    assert answer_of(ran).answer == BROKEN
    assert run_command(("a\0b",), 60).code is None


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open({str(pids)!r} + ".new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(pids)!r} + ".new", {str(pids)!r})
time.sleep(600)
"""
    ran = run_command(python(code), 4)
    assert ran.code is None and "longer than 4 s" in ran.why
    if pids.exists():  # a machine that is very slow may not have come so far
        for pid in pids.read_text().split():
            _wait_until_gone(int(pid))


def _wait_until_gone(pid: int) -> None:
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail(f"process {pid} was left behind")
