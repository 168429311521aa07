"""Known issues: findings that somebody has looked at, with an issue to point to. They are told, and do not fail a run.

    [[known]]
    signature = "F101-0123456789"      # a finding, or a rule and/or a verdict code:
    rule = "FIA-PA-007"
    code = "F201"
    backend = "torch-npu*"             # narrows it, with * and ?
    profile = "a2-*"
    issue = "OPS-12"                   # must be there
    owner = "mei"
    expires = 2027-03-31               # the last day on which it holds
    reason = "waits for the next operator package"

The file is corpus/known.toml. An entry that is past its date covers nothing; one whose findings were run again and are
all fixed has to go: both are told, so that the list does not outlive what it is about.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

from fiafuzz.model.profiles import PROFILES

from .baseline import Accepted, BaselineError, accepted, change_baseline, read_baseline
from .codes import CODES
from .corpus import Corpus, Entry, is_entry_id, read_regular
from .plan import Plan
from .results import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KNOWN_FILE = "known.toml"
BASELINE = "baseline"
"""What a finding is labelled with that the baseline covers."""
MAX_KNOWN_BYTES = 1 << 20
FIELDS: tuple[str, ...] = ("issue", "signature", "rule", "code", "backend", "profile", "owner", "expires", "reason")


class KnownError(ValueError):
    """A list of known issues that cannot be read; the text is one line and says where."""


@dataclass(frozen=True)
class Issue:
    """One known issue: what it covers (``signature``, ``rule``, ``code``; all that are given must fit, and the patterns
    ``backend`` and ``profile``), and what there is to say about it. ``where``: its place in the file."""

    issue: str
    where: str
    signature: Optional[str] = None
    rule: Optional[str] = None
    code: Optional[str] = None
    backend: str = "*"
    profile: str = "*"
    owner: str = ""
    expires: Optional[date] = None
    reason: str = ""

    def covers(self, entry: Entry) -> bool:
        """Whether a finding is this issue, whatever the date."""
        found = entry.signature
        return (
            self.signature in (None, entry.id)
            and self.rule in (None, found.rule)
            and self.code in (None, found.code)
            and fnmatchcase(found.backend, self.backend)
            and fnmatchcase(entry.profile, self.profile)
        )

    def expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and today > self.expires


# ---- the file -----------------------------------------------------------------------------------------------------


def read_known(path: Path) -> tuple[Issue, ...]:
    """The known issues of a file; none when there is no file. KnownError, one line with the place, when it cannot be
    read."""
    try:
        data = read_regular(path, MAX_KNOWN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise KnownError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise KnownError(f"{path}: {error}") from None
    try:
        text = data.decode("utf-8")
        document = tomllib.loads(text)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise KnownError(f"{path}: not TOML: {clean(' '.join(str(error).split()), 200)}") from None
    for name in document:
        if name != "known":
            raise KnownError(f"{path}: unknown table or key {clean(name, 40)!r}; entries are written as [[known]]")
    tables = document.get("known", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise KnownError(f"{path}: known must be tables, written as [[known]]")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.replace(" ", "").startswith("[[known]]")]
    exact = len(lines) == len(tables)  # not so when a text of several lines holds such a line too
    return tuple(_issue(t, f"{path}:{lines[i]}" if exact else f"{path}: entry {i + 1}") for i, t in enumerate(tables))


def _issue(table: Mapping[str, Any], where: str) -> Issue:
    for name in table:
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FIELDS)}"
            raise KnownError(f"{where}: unknown key {clean(name, 40)!r}; {hint}")
    for name in FIELDS:
        _check_type(name, table.get(name), where)
    if "issue" not in table:
        raise KnownError(f"{where}: no issue; every known finding needs one to point to")
    if not any(name in table for name in ("signature", "rule", "code")):
        raise KnownError(f"{where}: says nothing about what it covers; give a signature, a rule or a code")
    found = Issue(where=where, **{name: table[name] for name in FIELDS if name in table})
    _check_names(found)
    return found


def _check_type(name: str, value: Any, where: str) -> None:
    if value is None:
        return
    if name == "expires":
        if isinstance(value, datetime) or not isinstance(value, date):
            raise KnownError(f"{where}: expires must be a date without quotes, for example 2027-03-31, not {_shown(value)}")
    elif not isinstance(value, str):
        raise KnownError(f"{where}: {name} must be a text in quotes, not {_shown(value)}")
    elif not value.strip() or not value.isprintable():
        raise KnownError(f"{where}: {name} must be one line of text, not {_shown(value)}")


def _shown(value: Any) -> str:
    return clean(value if isinstance(value, (date, float, int)) else repr(value), 60).replace("\n", " ")


def _check_names(issue: Issue) -> None:
    """A name that nothing has would make an entry that never covers anything."""
    if issue.signature is not None and not is_entry_id(issue.signature):
        raise KnownError(f"{issue.where}: signature {issue.signature!r} is not of the form F101-0123456789")
    if issue.code is not None and (issue.code not in CODES or CODES[issue.code].severity != "error"):
        raise KnownError(f"{issue.where}: unknown code {issue.code!r}; 'fiafuzz explain' lists them")
    if not any(fnmatchcase(name, issue.profile) for name in PROFILES):
        raise KnownError(f"{issue.where}: no profile fits {issue.profile!r}; known: {', '.join(PROFILES)}")
    if issue.rule is not None:
        from oracles.constraints.catalogue import rule_by_id
        from oracles.metamorphic import RELATIONS

        names = (*rule_by_id(), *(r.name for r in RELATIONS))
        if issue.rule not in names:
            near = get_close_matches(issue.rule, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else "'fiafuzz constraints list' lists them"
            raise KnownError(f"{issue.where}: unknown rule {issue.rule!r}; {hint}")


# ---- in a run -----------------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    """What a run has seen of one issue."""

    findings: int = 0
    fixed: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)


class Ledger:
    """Known issues and baseline in one run: labels findings, and says at the end what has to change in the lists.

    KnownError or BaselineError when a list cannot be read.
    """

    def __init__(self, issues: tuple[Issue, ...], plan: Optional[Plan] = None, today: Optional[date] = None) -> None:
        self.issues = issues
        self.today = today if today is not None else datetime.now(timezone.utc).date()
        self._plan = plan if plan is not None else Plan()
        self._seen = {issue: _Seen() for issue in issues}
        self._baseline: dict[str, Accepted] = {}
        self._accepted: dict[str, Accepted] = {}
        self._found: set[str] = set()
        self._fixed: set[str] = set()
        path = self._plan.baseline
        if path is not None and not (self._plan.baseline_update and not Path(path).exists()):
            try:
                self._baseline = read_baseline(Path(path))
            except BaselineError as error:
                missing = not Path(path).exists()
                raise BaselineError(f"{error}{'; --baseline-update makes one' if missing else ''}") from None

    @classmethod
    def of(cls, plan: Plan) -> Ledger:
        """The ledger of a plan: corpus/known.toml and the baseline file."""
        return cls(read_known(Path(plan.corpus) / KNOWN_FILE), plan)

    def label(self, entry: Entry) -> Optional[str]:
        """Take in a finding; the issue that covers it, "baseline", or None when it counts."""
        self._found.add(entry.id)
        covering = [issue for issue in self.issues if issue.covers(entry)]
        for issue in covering:
            self._seen[issue].findings += 1
        found = self.peek(entry)
        if found is None and self._plan.baseline_update and not covering:
            self._accepted[entry.id] = accepted(entry)
            return BASELINE
        return found

    def peek(self, entry: Entry) -> Optional[str]:
        """What covers an entry, without taking it for a finding of this run."""
        covering = [issue for issue in self.issues if issue.covers(entry)]
        for issue in covering:
            if not issue.expired(self.today):
                return issue.issue
        # Who let an issue expire is to be reminded of it, also where an old baseline has the signature.
        return BASELINE if entry.id in self._baseline and not covering else None

    def replayed(self, entry: Entry, status: str) -> Optional[str]:
        """Take in that an entry was run again; what covers it. Only "fixed" says that a finding is gone: "passing" is
        another backend's answer."""
        for issue in self.issues:
            if issue.covers(entry):
                if status == "fixed":
                    self._seen[issue].fixed.add(entry.id)
                elif status in ("failing", "flaky", "new"):
                    self._seen[issue].failing.add(entry.id)
        if status == "fixed":
            self._fixed.add(entry.id)
        return self.peek(entry)

    def expired(self) -> list[tuple[str, str]]:
        """Issues that are past their date and could cover findings of this run: reference, and one line."""
        plan = self._plan
        return [
            (i.issue, _expiry(i))
            for i in self.issues
            if i.expired(self.today)
            and any(fnmatchcase(b, i.backend) for b in plan.backends)
            and any(fnmatchcase(p, i.profile) for p in plan.profiles)
        ]

    def expired_for(self, entry: Entry) -> list[str]:
        """Issues past their date that would have covered a finding, a line each."""
        return [_expiry(i) for i in self.issues if i.expired(self.today) and i.covers(entry)]

    def passing(self) -> list[tuple[str, str]]:
        """Issues whose entries were run again and are all fixed, while nothing that they cover was found: reference, and
        one line."""
        found = []
        for issue, seen in self._seen.items():
            if seen.fixed and not seen.failing and not seen.findings:
                names = ", ".join(sorted(seen.fixed)[:3]) + (", ..." if len(seen.fixed) > 3 else "")
                found.append((issue.issue, f"{issue.where}: {issue.issue} passes now ({names}): remove it" + _owner(issue)))
        return found

    @property
    def gone(self) -> frozenset[str]:
        """Signatures of the baseline that were run again, are fixed, and were not found otherwise."""
        return frozenset((self._fixed - self._found) & self._baseline.keys())

    def close(self) -> Optional[str]:
        """Write the baseline as the plan says; one line about it, None when there is nothing to say. BaselineError or
        OSError when it cannot be written."""
        plan = self._plan
        if plan.baseline is None:
            return None
        if not (plan.baseline_update or plan.baseline_prune):
            many = len(self.gone)
            return f"{many} of the baseline no longer fail; --baseline-prune drops them" if many else None
        drop = self.gone if plan.baseline_prune else frozenset()
        added, dropped = change_baseline(Path(plan.baseline), self._accepted if plan.baseline_update else {}, drop)
        return f"{plan.baseline}: {added} signatures added, {dropped} dropped"


def _expiry(issue: Issue) -> str:
    return f"{issue.where}: {issue.issue} expired on {issue.expires}; its findings count again" + _owner(issue)


def _owner(issue: Issue) -> str:
    return f" (owner: {issue.owner})" if issue.owner else ""


def missing_signatures(issues: tuple[Issue, ...], corpus: Corpus) -> list[str]:
    """Known issues that name a finding which the corpus does not hold, a line each: nothing would tell when it is
    fixed."""
    return [
        f"{i.where}: {i.issue} names {i.signature}, which the corpus does not hold"
        for i in issues
        if i.signature is not None and corpus.find(i.signature) is None
    ]
