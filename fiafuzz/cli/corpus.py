"""fiafuzz corpus: list, show, verify, merge and min."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from .main import EXIT_CLEAN, EXIT_FINDINGS, EXIT_NOTHING, EXIT_USAGE, UserError
from .options import json_option

corpus_option = click.option("--corpus", "root", default="corpus", show_default=True, metavar="DIR", help="The corpus.")


@click.group()
def command() -> None:
    """List, show, check, merge and thin out the findings that runs have kept.

    A corpus is a directory of small JSON files that can be reviewed and committed: found/ (written by runs), regressions/ (moved there by
    people, kept for good), imported/, and known.toml (known issues).
    """


def leaves(function: Callable[..., int]) -> Callable[..., None]:
    """Leave with the exit code that a verb returns; a corpus that cannot be read or written is one line and exit 2."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        from fiafuzz.campaign.corpus import CorpusError

        try:
            code = function(*args, **options)
        except CorpusError as error:
            raise UserError(str(error)) from None
        raise click.exceptions.Exit(code)

    return run


def existing(root: str) -> Any:
    """A corpus that is there."""
    from fiafuzz.campaign.corpus import Corpus

    if not os.path.isdir(root):
        raise UserError(f"{root}: {'not a directory' if os.path.lexists(root) else 'no such corpus'}")
    return Corpus(root)


def complain(lines: list[str], limit: int = 20) -> None:
    """Bad files, one line each on stderr."""
    from fiafuzz.campaign.results import clean

    for line in lines[:limit]:
        click.echo(f"fiafuzz: {clean(line, 1000)}".replace("\n", " "), err=True)
    if len(lines) > limit:
        click.echo(f"fiafuzz: {len(lines) - limit} more unreadable files", err=True)


def say(text: str) -> None:
    """A line on standard output; names of files may hold anything."""
    from fiafuzz.campaign.results import clean

    click.echo(clean(text, 2000).replace("\n", " "))


def as_json_text(data: Any) -> str:
    """Data as one line of JSON."""
    import msgspec

    return msgspec.json.encode(data).decode()


def row_of(path: Path, entry: Any) -> dict[str, Any]:
    """An entry in short."""
    signature = entry.signature
    return {
        "id": entry.id,
        "folder": path.parent.name,
        "file": str(path),
        "code": signature.code,
        "backend": signature.backend,
        "profile": entry.profile,
        "rule": signature.rule,
        "features": dict(signature.features),
        "first_seen": entry.first_seen,
        "title": entry.title,
    }


def line_of(row: dict[str, Any]) -> str:
    """A row for people."""
    from fiafuzz.campaign.results import clean

    about = row["rule"] or " ".join(f"{k}={v}" for k, v in row["features"].items()) or row["title"]
    cells = (f"{row['id']:<16}", f"{row['folder']:<11}", row["first_seen"][:10], row["backend"], row["profile"], about)
    return clean("  ".join(cells), 240).replace("\n", " ")


@command.command("list")
@corpus_option
@json_option
@leaves
def list_verb(root: str, as_json: bool) -> int:
    """List the entries: id, folder, when it was first seen, backend, profile, and what it is about."""
    from fiafuzz.campaign.corpus import BadEntry

    rows, bad = [], []
    for path, found in existing(root).files():
        if isinstance(found, BadEntry):
            bad.append(str(found))
        else:
            rows.append(row_of(path, found))
    if as_json:
        click.echo(as_json_text({"corpus": root, "entries": rows, "unreadable": bad}))
    else:
        for row in rows:
            click.echo(line_of(row))
        click.echo(f"{len(rows)} entr{'y' if len(rows) == 1 else 'ies'} in {root}", err=True)
    complain(bad)
    return EXIT_USAGE if bad else EXIT_CLEAN if rows else EXIT_NOTHING


@command.command("show")
@click.argument("what", nargs=-1, required=True, metavar="ID|FILE...")
@corpus_option
@json_option
@leaves
def show_verb(what: tuple[str, ...], root: str, as_json: bool) -> int:
    """Show entries: what was expected, what came, the parameters that matter, and how to reproduce it.

    With --json the entry's own JSON, one line each.
    """
    from fiafuzz.campaign.corpus import BadEntry, Corpus, as_data, read_entry
    from fiafuzz.campaign.results import clean

    from .display import entry_block

    bad = []
    for word in what:
        found = Corpus(root).find(word) if not os.path.exists(word) else read_entry(Path(word))
        if found is None:
            bad.append(clean(f"{word}: neither a file nor an entry of {root}", 300))
        elif isinstance(found, BadEntry):
            bad.append(str(found))
        elif as_json:
            from fiafuzz.model.case import case_to_dict

            click.echo(as_json_text({**as_data(found), "case": case_to_dict(found.case)}))
        else:
            environment = ", ".join(f"{k} {v}" for k, v in found.environment.items())
            click.echo(entry_block(found, found.profile))
            say(f"  first seen {found.first_seen} with seed {found.seed}")
            say(f"  versions   {environment}")
    complain(bad)
    return EXIT_USAGE if bad else EXIT_CLEAN


@command.command("verify")
@corpus_option
@json_option
@leaves
def verify_verb(root: str, as_json: bool) -> int:
    """Check every file: an entry, named after its content, whose prediction is still the one that it was kept with.

    Also told: links, files that nothing reads, files that a killed program has left, known issues without an entry. Exit 1 when anything
    is told, 2 when a file cannot be read.
    """
    from fiafuzz.campaign.corpus_verify import LINK, UNREADABLE, Trouble, verify

    good, troubles = 0, []
    for found in verify(existing(root)):
        if isinstance(found, Trouble):
            troubles.append(found)
            if not as_json:
                say(f"{found.kind:<18} {found.path}: {found.text}")
        else:
            good += 1
    if as_json:
        click.echo(as_json_text({"corpus": root, "good": good, "troubles": troubles}))
    counts = Counter(t.kind for t in troubles)
    told = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    click.echo(f"{good} entries are good" + (f"; {told}" if told else ""), err=True)
    if counts[UNREADABLE] or counts[LINK]:
        return EXIT_USAGE
    return EXIT_FINDINGS if troubles else EXIT_CLEAN if good else EXIT_NOTHING


@command.command("merge")
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option("--into", "root", default="corpus", show_default=True, metavar="DIR", help="The corpus that they go into; made if missing.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@leaves
def merge_verb(sources: tuple[str, ...], root: str, dry_run: bool, as_json: bool) -> int:
    """Take over the entries of other corpora, of run directories and of single files. Nothing is overwritten.

    The same call under the same signature is one entry. Another call under a signature that is there is kept beside it, as
    ID.CONTENT.json, and told. Files that are no entries are told one by one and left out; the exit code is then 2.
    """
    from fiafuzz.campaign.corpus import Corpus
    from fiafuzz.campaign.corpus_merge import ADDED, APART, BAD, THERE, merge, sources_of

    if os.path.lexists(root) and not os.path.isdir(root):
        raise UserError(f"{root}: not a directory")
    counts: Counter[str] = Counter()
    told, bad = [], []
    for source in sources:
        if os.path.isdir(source) and os.path.isdir(root) and os.path.samefile(source, root):
            raise UserError(f"{source}: is the corpus that the entries go into")
    every = (found for source in sources for found in sources_of(Path(source)))
    for done in merge(every, Corpus(root), dry=dry_run):
        counts[done.outcome] += 1
        if as_json:
            told.append(done)
        if done.outcome == BAD:
            bad.append(f"{done.where}: {done.text}")
        elif done.outcome != THERE and not as_json:
            say(f"{done.outcome:<6} {done.path}" + (f" ({done.text})" if done.text else ""))
    if as_json:
        click.echo(as_json_text({"into": root, "dry_run": dry_run, "counts": dict(counts), "entries": told}))
    complain(bad)
    words = {ADDED: "added", APART: "kept apart", THERE: "there already", BAD: "refused"}
    click.echo((", ".join(f"{counts[k]} {w}" for k, w in words.items() if counts[k]) or "nothing to merge"), err=True)
    return EXIT_USAGE if bad else EXIT_CLEAN if counts else EXIT_NOTHING


@command.command("min")
@corpus_option
@click.option("--into", metavar="DIR", help="Write the subset into this corpus and leave the other as it is.")
@click.option("--in-place", is_flag=True, help="Delete what is redundant from the corpus.")
@click.option("--dry-run", is_flag=True, help="Only say what would be kept.")
@json_option
@leaves
def min_verb(root: str, into: str | None, in_place: bool, dry_run: bool, as_json: bool) -> int:
    """Find a subset that covers the same: every signature, every rule, every pair of scene factors.

    Entries under regressions/ always stay. Files that cannot be read are told and left alone.
    """
    from fiafuzz.campaign.corpus import Corpus
    from fiafuzz.campaign.corpus_merge import BAD, Source, merge
    from fiafuzz.campaign.corpus_min import subset

    if sum((into is not None, in_place, dry_run)) != 1:
        raise UserError("say what to do with the subset: one of --into DIR, --in-place or --dry-run")
    if into is not None and os.path.isdir(into) and os.path.isdir(root) and os.path.samefile(into, root):
        raise UserError(f"{into}: is the corpus itself; --in-place deletes what is redundant there")
    found = subset(existing(root))
    bad = [str(b) for b in found.bad]
    if into is not None:
        kept = (Source(k.entry, k.path.parent.name, str(k.path)) for k in found.kept)
        bad += [f"{done.where}: {done.text}" for done in merge(kept, Corpus(into)) if done.outcome == BAD]
    if in_place:
        for path, _ in found.redundant:
            try:
                path.unlink()
            except OSError as error:
                bad.append(f"{path}: {error.strerror or error}")
    if as_json:
        data = {
            "corpus": root,
            "kept": [{"file": str(k.path), "id": k.entry.id, "why": k.why} for k in found.kept],
            "redundant": [str(path) for path, _ in found.redundant],
        }
        click.echo(as_json_text(data))
    else:
        for path, _ in found.redundant:
            say(f"{'deleted' if in_place else 'redundant'} {path}")
    complain(bad)
    why = Counter(k.why for k in found.kept)
    told = ", ".join(f"{n} for {'a ' if w != 'pairs' and w != 'regressions' else ''}{w}" for w, n in why.items())
    click.echo(f"{len(found.kept)} kept" + (f" ({told})" if told else "") + f", {len(found.redundant)} redundant", err=True)
    return EXIT_USAGE if bad else EXIT_CLEAN if found.kept or found.redundant else EXIT_NOTHING
