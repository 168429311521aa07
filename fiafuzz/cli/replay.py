"""fiafuzz replay: run kept or single cases again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from fiafuzz.model.profiles import PROFILES

from .durations import Duration
from .main import EXIT_CLEAN, EXIT_FINDINGS, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_USAGE, Unavailable, UserError, complain
from .options import Reader, json_option, profile_option


@click.command()
@click.argument("what", nargs=-1, metavar="[PATH|ID]...")
@click.option("--backend", metavar="NAME", help="Backend to run. [default: the entry's own, else cpu]")
@profile_option
@click.option(
    "--corpus",
    default="corpus",
    show_default=True,
    metavar="DIR",
    help="The corpus that IDs are looked up in, and that is replayed whole when nothing is named.",
)
@click.option("--standard", default="", metavar="NAME", help="Precision standard by its pinned name. [default: the fuzzer's own gate]")
@click.option("--time-limit", type=Duration(), default="10s", show_default=True, help="Time that one case may take.")
@click.option("--dare", is_flag=True, help="Also run calls that are known to crash or hang the real host.")
@json_option
def command(
    what: tuple[str, ...],
    backend: str | None,
    profile: str | None,
    corpus: str,
    standard: str,
    time_limit: float,
    dare: bool,
    as_json: bool,
) -> None:
    """Run kept entries (by ID or file), files of cases ("-" is standard input), or the whole corpus again.

    An entry is failing, fixed, passing, flaky or new (it fails in another way); a bare case is passing, new or flaky. Where a record says
    what it expects (field "expected"), the prediction is compared with it. Exit 1 when anything fails or disagrees.

    When the whole corpus is replayed, entries that its known.toml covers may fail; a known issue whose entries are all fixed fails.
    Entries of backends that this machine lacks are told and left out; exit 4 when that leaves none.
    """
    from fiafuzz.backends.protocol import BackendUnavailable
    from fiafuzz.campaign.replay import replay
    from fiafuzz.campaign.schedulers.protocol import BackendRefused, SchedulerError
    from fiafuzz.campaign.stopping import StopFlag, signals_stop

    from .backends import usable_backends
    from .fuzz import check_standard

    check_standard(standard)
    if backend is not None:
        usable_backends((backend,))
    problems: list[str] = []
    items = [item for item in _items(what, corpus, problems) if _stands_for(item, problems)]
    for text in problems[:20]:
        complain(text)
    ledger = _ledger(corpus) if not what else None
    counts: Counter[str] = Counter()
    expired: dict[str, None] = {}
    disagreeing = 0
    absent: list[str] = []
    stop = StopFlag()
    with signals_stop(stop):
        try:
            for name, group in _by_backend(items, backend, usable_backends, absent if not what and backend is None else None):
                for found in replay(group, name, profile, time_limit=time_limit, standard=standard, dare=dare, stop=lambda: bool(stop)):
                    known = _known(ledger, found, name, expired)
                    counts["known" if known and found.status in ("failing", "flaky") else found.status] += 1
                    disagreeing += bool(found.disagrees)
                    _show(found, name, as_json, known)
        except (BackendUnavailable, BackendRefused) as error:
            raise Unavailable(" ".join(str(error).split())) from None
        except SchedulerError as error:
            raise UserError(" ".join(str(error).split())) from None
    for text in absent:
        complain(text)
    if absent and not counts and not stop:
        raise Unavailable("no entry can be replayed here; --backend NAME runs them on another backend")
    passing = [text for _, text in ledger.passing()] if ledger is not None and not stop else []
    for text in (*passing, *expired):
        click.echo(f"known issue: {text}", err=True)
    told = ", ".join(f"{n} {status}" for status, n in counts.items()) or "nothing to replay"
    click.echo(told + (f"; {disagreeing} disagree with what their file expects" if disagreeing else ""), err=True)
    raise click.exceptions.Exit(_exit_code(bool(stop), bool(problems), counts, disagreeing + len(passing), bool(items)))


def _exit_code(stopped: bool, problems: bool, counts: Counter[str], disagreeing: int, any_item: bool) -> int:
    if stopped:
        return EXIT_INTERRUPTED
    if counts["internal"]:
        return EXIT_INTERNAL
    if problems:
        return EXIT_USAGE
    if any(counts[s] for s in ("failing", "new", "flaky")) or disagreeing:
        return EXIT_FINDINGS
    return EXIT_CLEAN if any_item else EXIT_NOTHING


def _ledger(corpus: str) -> Any:
    """The known issues of a corpus."""
    from pathlib import Path

    from fiafuzz.campaign.known import KNOWN_FILE, KnownError, Ledger, read_known

    try:
        return Ledger(read_known(Path(corpus) / KNOWN_FILE))
    except KnownError as error:
        raise UserError(str(error)) from None


def _known(ledger: Any, found: Any, backend: str, expired: dict[str, None]) -> str | None:
    """The issue that covers an entry on its own backend; issues past their date are collected."""
    entry = found.item.entry
    if ledger is None or entry is None or entry.signature.backend != backend:
        return None
    known: str | None = ledger.replayed(entry, found.status)
    if found.status in ("failing", "flaky"):
        expired.update(dict.fromkeys(ledger.expired_for(entry)))
    return known


def _items(what: tuple[str, ...], corpus: str, problems: list[str]) -> Iterator[Any]:
    from pathlib import Path

    from fiafuzz.campaign.corpus import BadEntry, Corpus, CorpusError, read_entry
    from fiafuzz.campaign.replay import Item, entry_item

    kept = Corpus(corpus)
    if not what:
        try:
            for entry in kept.entries():
                if isinstance(entry, BadEntry):
                    problems.append(str(entry))
                else:
                    yield entry_item(entry)
        except CorpusError as error:
            raise UserError(str(error)) from None
        return
    for word in what:
        if word != "-" and not os.path.exists(word):
            entry = kept.find(word)
            if entry is None:
                raise UserError(f"{word}: neither a file nor an entry of {corpus}")
            yield entry_item(entry)
            continue
        if word != "-" and word.endswith(".json"):
            entry_or_not = read_entry(Path(word))
            if not isinstance(entry_or_not, BadEntry):
                yield entry_item(entry_or_not)
                continue
        reader = Reader(word)
        for record in reader:
            expected = record.extra.get("expected")
            yield Item(record.name, record.case, record.profile, None, expected if isinstance(expected, dict) else None)
        if reader.failed:
            problems.append(f"{word}: {reader.bad} unreadable record{'s' * (reader.bad != 1)}")


def _stands_for(item: Any, problems: list[str]) -> bool:
    """Whether the profile of an entry is one of ours; one of a newer version, or of a stranger, is told and left out."""
    if item.profile is None or item.profile in PROFILES:
        return True
    problems.append(f"{item.name}: unknown profile {item.profile!r:.60} (at $.profile)")
    return False


def _by_backend(items: list[Any], backend: str | None, usable: Any, absent: list[str] | None) -> Iterator[tuple[str, list[Any]]]:
    """Items by the backend that runs them. ``absent`` collects, for a whole corpus, what has no backend on this machine; without it
    that is an error."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        own = item.entry.signature.backend if item.entry is not None else "cpu"
        groups.setdefault(backend or own, []).append(item)
    for name, group in groups.items():
        try:
            names = usable((name,))
        except (Unavailable, UserError) as error:
            if absent is None:
                raise
            absent.append(f"{len(group)} {'entry' if len(group) == 1 else 'entries'} not replayed: {error.format_message()}")
            continue
        for real in names:
            yield real, group


def _show(found: Any, backend: str, as_json: bool, known: str | None = None) -> None:
    if as_json:
        import msgspec

        data = {
            "name": found.item.name,
            "status": found.status,
            "backend": backend,
            "profile": found.profile,
            "predicted": {"verdict": found.foreseen.verdict, "codes": list(found.foreseen.codes), "rules": list(found.foreseen.rules)},
            "code": found.verdict.code,
            "rule": found.verdict.rule,
            "text": found.text,
        }
        if found.result is not None:
            data["got"] = {"kind": found.result.kind, "code": found.result.code}
        if known:
            data["known"] = known
        if found.disagrees:
            data["disagrees"] = found.disagrees
        click.echo(msgspec.json.encode(data).decode())
        return
    code = f" {found.verdict.code}" if found.verdict.code else ""
    issue = f" known ({known})" if known else ""
    what = f"{found.item.name} ({backend}, {found.profile})"
    click.echo(f"{found.status:<11} {what}{code}{issue}" + (f": {found.text}" if found.text else ""))
    if found.disagrees:
        click.echo(f"            {found.disagrees}")
