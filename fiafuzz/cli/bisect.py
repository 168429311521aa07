"""fiafuzz bisect: the first bad build of an ordered list."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import click

from .durations import Duration, in_words
from .main import EXIT_CLEAN, EXIT_FINDINGS, EXIT_INTERRUPTED, UserError
from .options import Reader

STATES = Path(".fiafuzz") / "bisect"
MAX_LIST_BYTES = 16 * 1024 * 1024


@click.command()
@click.argument("what", required=False, metavar="[ENTRY|FILE]")
@click.option("--good", required=True, metavar="BUILD", help="A build on which the case is known to pass.")
@click.option("--bad", required=True, metavar="BUILD", help="A build on which it is known to fail. [before --good: finds what repaired it]")
@click.option(
    "--builds",
    required=True,
    metavar="FILE|A,B,C",
    help='The builds, oldest first: a file with one a line ("#" begins a comment), or a comma-separated list.',
)
@click.option(
    "--run",
    "template",
    required=True,
    metavar="COMMAND",
    help="Command that tests one build. {build} and {case} are replaced by its name and by the file of the case; no shell is used.",
)
@click.option("--corpus", default="corpus", show_default=True, metavar="DIR", help="The corpus that ENTRY is looked up in.")
@click.option(
    "--must-work",
    metavar="ENTRY|FILE",
    help="A case that must pass on every build: one that fails it is broken, not bad. [default: the plainest valid call]",
)
@click.option("--no-must-work", is_flag=True, help="Believe every failure without that check.")
@click.option("--trust-ends", is_flag=True, help="Do not test the good and the bad build first.")
@click.option("--tries", default=1, show_default=True, type=click.IntRange(1, 100), help="Runs a build; it is bad when one fails.")
@click.option("--time-limit", type=Duration(), default="30m", show_default=True, help="Time that one run of the command may take.")
@click.option("--state", metavar="FILE", help="Where answers are kept; a stopped search goes on from it. [default: in .fiafuzz]")
@click.option("--fresh", is_flag=True, help="Forget the answers of an earlier search.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON object on standard output.")
def command(
    what: str | None,
    good: str,
    bad: str,
    builds: str,
    template: str,
    corpus: str,
    must_work: str | None,
    no_must_work: bool,
    trust_ends: bool,
    tries: int,
    time_limit: float,
    state: str | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Find the first bad build of an ordered list, asking as few builds as possible.

    \b
    fiafuzz bisect F202-0123456789 --builds nights.txt --good 0901 --bad 0930 \\
        --run "/builds/{build}/bin/fiafuzz replay --json {case}"

    COMMAND ends with 0 for a good build, with 1 (or 6 to 124) for a bad one, with 125 when the build cannot be tested, with 4 when it
    cannot run here; a command that breaks down, cannot be started or takes too long counts as a broken build.

    Every answer is kept, so a search that was interrupted or killed goes on where it was.

    Exit 0: found; 1: several builds remain, since some between cannot be tested; 130: interrupted.
    """
    from fiafuzz.campaign import bisect
    from fiafuzz.campaign.bisect_run import Command

    try:
        words = Command.parse(template)
        case = _case_file(what, corpus) if what is not None else ""
        _check_places(words, case)
        if must_work is not None and (no_must_work or not case):
            raise UserError("--must-work needs an ENTRY or FILE, and excludes --no-must-work")
        named = _case_file(must_work, corpus) if must_work is not None else ""
        settings = {"tries": str(tries), "must work": named or ("nothing" if no_must_work or not case else "plainest call")}
        question = bisect.question_of(_builds(builds), good, bad, words.words, case, settings)
        place = Path(state) if state is not None else STATES / f"{question.id}.json"
        if fresh:
            bisect.forget_state(place)
        found = bisect.load_state(place, question)
        canary = named or (_plainest_call(case, place) if case and not no_must_work else "")
        _search(found, place, words, case, canary, time_limit, tries, trust_ends)
        result = bisect.result_of(question, found.answers)
    except bisect.BisectError as error:
        raise UserError(" ".join(str(error).split())) from None
    except OSError as error:
        raise UserError(f"{error.filename or 'state'}: {error.strerror or error}") from None
    click.echo(_as_json(question, result) if as_json else _in_words(question, result))
    raise click.exceptions.Exit(EXIT_CLEAN if result.found is not None else EXIT_FINDINGS)


# ---- what was given -------------------------------------------------------------------------------------------------


def _builds(given: str) -> list[str]:
    """The builds of a file (one a line) or of a comma-separated list."""
    if os.path.isfile(given):
        try:
            with open(given, "rb") as file:
                text = file.read(MAX_LIST_BYTES + 1).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{given}: {getattr(error, 'strerror', None) or 'not text in UTF-8'}") from None
        if len(text) > MAX_LIST_BYTES:
            raise UserError(f"{given}: over the limit of {MAX_LIST_BYTES} bytes")
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return [line for line in lines if line]
    if "," not in given:
        raise UserError(f"{given}: no such file, and not a comma-separated list of builds")
    return [word.strip() for word in given.split(",") if word.strip()]


def _case_file(word: str, corpus: str) -> str:
    """The absolute path of an entry (by id) or a file of cases. UserError when there is none, or it holds no case."""
    from fiafuzz.campaign.corpus import FOLDERS, Corpus, Entry, read_entry

    if not os.path.exists(word):
        entry = Corpus(corpus).find(word)
        folders = [Path(corpus) / folder for folder in FOLDERS]
        # Beside ID.json an entry may stand under a longer name, ID.CONTENT.json.
        paths = [p for folder in folders for p in (folder / f"{word}.json", *sorted(folder.glob(f"{word}.*.json")))] if entry else []
        path = next((p for p in paths if isinstance(read_entry(p), Entry)), None)
        if path is None:
            raise UserError(f"{word}: neither a file nor an entry of {corpus}")
        return str(path.resolve())
    if not isinstance(read_entry(Path(word)), Entry):
        reader = Reader(word)
        if not any(True for _ in reader):
            raise UserError(f"{word}: no case in it")
    return str(Path(word).resolve())


def _check_places(words: Any, case: str) -> None:
    if not words.names_build:
        raise UserError("--run does not name {build}: it would give every build the same answer")
    if case and not words.names_case:
        raise UserError("--run does not name {case}, so the ENTRY or FILE would not be used")
    if not case and words.names_case:
        raise UserError("--run names {case}, but no ENTRY or FILE is given")


def _plainest_call(case: str, state: Path) -> str:
    """Write the plainest valid call for the case's profile beside the state; its path, or "" when there is none."""
    import msgspec

    from fiafuzz.campaign.corpus import Entry, read_entry
    from fiafuzz.campaign.triage import plain_case
    from fiafuzz.campaign.whole_files import write_whole
    from fiafuzz.model.case import case_to_dict
    from fiafuzz.model.profiles import profile_for
    from oracles.constraints.predict import predict

    entry = read_entry(Path(case))
    if isinstance(entry, Entry):
        subject, profile = entry.case, entry.profile
    else:
        record = next(iter(Reader(case)))
        subject = record.case
        profile = record.profile or profile_for(subject.api, subject.product).name
    plain = plain_case(subject.product, subject.api)
    if predict(plain, profile).verdict != "accept":
        return ""
    path = state.with_name(f"{state.stem}.must-work.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode({"name": "must work", "profile": profile, "case": case_to_dict(plain)}) + b"\n")
    return str(path.resolve())


# ---- the search -----------------------------------------------------------------------------------------------------


def _search(state: Any, place: Path, words: Any, case: str, canary: str, limit: float, tries: int, trust_ends: bool) -> None:
    from fiafuzz.campaign import bisect
    from fiafuzz.campaign.bisect_run import Asker, Stopped

    question = state.question
    known = len(state.answers)
    click.echo(f"state {place}" + (f", {known} answer{'s' * (known != 1)} of an earlier search" if known else ""), err=True)
    asker = Asker(words, case, canary, limit, tries, keep=_log_keeper(place, question.builds))
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not trust_ends:
            _check_ends(state, place, asker)
        _check_canary(state, place, asker)
        left = bisect.steps_left(question, state.answers)
        click.echo(f"{len(question.builds)} builds, at most {left} more to ask if each gives an answer", err=True)
        for build, answer in bisect.search(state, asker, lambda s: bisect.save_state(place, s)):
            _tell(build, answer)
    except (KeyboardInterrupt, Stopped):
        click.echo(f"fiafuzz: interrupted; the same command goes on from {place}", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _check_ends(state: Any, place: Path, asker: Any) -> None:
    """Test both ends once, the newer one first. BisectError when one does not answer as it should."""
    from fiafuzz.campaign.bisect import BisectError, save_state

    question = state.question
    for build, wanted in ((question.last, question.last_answer), (question.first, question.first_answer)):
        if build not in state.ends:
            answer = asker.case_on(build)
            _tell(build, answer)
            if answer.answer != wanted:
                told = f": {answer.text}" if answer.text else ""
                raise BisectError(f"build {build!r} should be {wanted} but is {answer.answer}{told}")
            state.ends[build] = answer
            save_state(place, state)


def _check_canary(state: Any, place: Path, asker: Any) -> None:
    """Whether the call that must work does so on the bad build; where it does not, it tells nothing about builds."""
    from fiafuzz.campaign.bisect import BAD, GOOD, save_state

    if not asker.canary:
        return
    if state.canary is None:
        question = state.question
        bad = question.last if question.last_answer == BAD else question.first
        answer = asker.canary_on(bad)
        state.canary = answer.answer == GOOD
        save_state(place, state)
    if not state.canary:
        click.echo("warning: the call that must work fails on the bad build too; broken builds are not told from bad ones by it", err=True)
        asker.canary = ""


def _log_keeper(place: Path, builds: tuple[str, ...]) -> Any:
    """A function that keeps the end of what each run printed, in a folder beside the state."""
    from fiafuzz.campaign.whole_files import write_whole

    folder = place.with_name(f"{place.stem}.logs")

    def keep(build: str, what: str, ran: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", build)[:80]
        write_whole(folder / f"{builds.index(build):04d}-{name}-{what}.txt", ran.output.encode("utf-8", "replace"))

    return keep


# ---- what is told ---------------------------------------------------------------------------------------------------


def _tell(build: str, answer: Any) -> None:
    from fiafuzz.campaign.results import clean

    text = f": {answer.text}" if answer.text else ""
    click.echo(clean(f"{answer.answer:<7} {build} ({in_words(answer.seconds)}){text}", 500), err=True)


def _in_words(question: Any, result: Any) -> str:
    from fiafuzz.campaign.results import clean

    kind = question.last_answer
    lines = []
    if result.found is not None:
        lines.append(f"first {kind} build: {result.found}")
        lines.append(f"last {question.first_answer} build: {result.before}")
    else:
        lines.append(f"the first {kind} build is one of these {len(result.remaining)}:")
        for build in result.remaining:
            answer = result.untested.get(build)
            lines.append(f"  {build}" + (f"  {answer.answer}: {answer.text}" if answer is not None else f"  {kind}"))
        lines.append(f"last {question.first_answer} build: {result.before}")
    return "\n".join(clean(line, 500) for line in lines)


def _as_json(question: Any, result: Any) -> str:
    import msgspec

    data = {
        "fiafuzz_bisect": 1,
        "sought": question.last_answer,
        "found": result.found,
        "before": result.before,
        "remaining": result.remaining,
        "untested": result.untested,
        "asked": result.steps,
    }
    return msgspec.json.encode(data).decode()
