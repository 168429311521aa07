"""The candidates by name. Listing them imports none of them; a backend's own modules load when it is asked for.

Third parties add backends through the entry point group ``fiafuzz.backends``: an entry ``NAME = module:factory`` whose
factory takes a profile name or None and returns a Backend; an attribute ``title`` of the factory is shown in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Optional, cast

from .catalogue import ALIASES, BUILTIN, FAMILIES, PLANTED
from .packages import missing
from .protocol import Backend, BackendUnavailable
from .spelling import base_of

ENTRY_POINTS = "fiafuzz.backends"
FAULTY = "faulty:"


@dataclass(frozen=True)
class BackendRecord:
    """One line of the list of backends. ``reason`` says what is missing when it is not ``available``."""

    name: str
    title: str
    available: bool
    reason: str = ""
    capabilities: Mapping[str, str] = field(default_factory=dict)


def expand(name: str) -> tuple[str, ...]:
    """The backends that a name means: itself, or those of an alias."""
    return ALIASES.get(name, (name,))


def canonical(name: str) -> str:
    """A name with its options in their order; ValueError for an option that a family does not take. Other names stay."""
    family = FAMILIES.get(base_of(name))
    return name if family is None else cast(str, _attribute(family.choose)(name).name)


def find_record(name: str) -> Optional[BackendRecord]:
    """The record of a backend by its name, options included; None for an unknown name. ValueError for a wrong option."""
    real = canonical(name)
    records = {r.name: r for r in list_backends()}
    if real in records or base_of(real) not in FAMILIES:
        return records.get(real)
    words = real.partition(":")[2].split(",")
    like = next((r for w in words if (r := records.get(f"{base_of(real)}:{w}"))), records[base_of(real)])
    return replace(like, name=real)


def get_backend(name: str, profile: Optional[str] = None) -> Backend:
    """The backend of that name, standing for a profile (None: the profile that each case names).

    ``faulty:NAME`` is the cpu backend with the planted fault NAME. ValueError for an unknown name (with near known
    ones) and for an alias of several; BackendUnavailable when it cannot run here.
    """
    if name.startswith(FAULTY):
        _require(("torch", "numpy"), name)
        factory = import_module(f"{__package__}.faulty").faulty_backend
        return cast(Backend, factory(name[len(FAULTY) :], profile))
    if name in ALIASES:
        raise ValueError(f"{name} means {' and '.join(ALIASES[name])}: name one of them")
    family = FAMILIES.get(base_of(name))
    if family is not None:
        real = canonical(name)
        _require(BUILTIN[base_of(name)].needs, real)
        return cast(Backend, _attribute(family.make)(real, profile))
    builtin = BUILTIN.get(name)
    if builtin is not None:
        _require(builtin.needs, name)
        module, _, attribute = builtin.factory.partition(":")
        return cast(Backend, getattr(import_module(f"{__package__}.{module}"), attribute)(profile))
    for entry in _third_party():
        if entry.name == name:
            return _load(entry)(profile)
    near = get_close_matches(name, [*BUILTIN, *ALIASES, *(e.name for e in _third_party())], 3)
    known = ", ".join([*BUILTIN, *ALIASES, "faulty:NAME"])
    raise ValueError(
        f"unknown backend {name!r}; " + (f"did you mean {' or '.join(near)}?" if near else f"known: {known}")
    )


def list_backends() -> list[BackendRecord]:
    """Every backend that can be named, without importing any: built-in ones, planted faults, other packages'."""
    from .faults import all_faults

    records = [_record(name, b.title, b.needs, b.capabilities, b.missing) for name, b in BUILTIN.items()]
    records.extend(
        _record(f"{FAULTY}{f.name}", f.title, ("torch", "numpy"), {**PLANTED, "room": f.room, "profile": f.profile, "mode": f.mode})
        for f in all_faults()
    )
    for entry in _third_party():
        source = entry.dist.name if entry.dist is not None else entry.value
        package = entry.module.partition(".")[0]
        there = find_spec(package) is not None
        records.append(
            BackendRecord(
                entry.name, f"from {source}", there, "" if there else f"needs {package}", {"entry point": entry.value}
            )
        )
    return records


def _record(name: str, title: str, needs: tuple[str, ...], capabilities: Mapping[str, str], why: str = "") -> BackendRecord:
    absent = missing(needs)
    reason = f"needs {', '.join(absent)}" if absent else ""
    if why and not reason:
        reason = str(_attribute(why)())
    return BackendRecord(name, title, not reason, reason, capabilities)


def _attribute(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


def _require(needs: tuple[str, ...], name: str) -> None:
    absent = missing(needs)
    if absent:
        packages = " ".join(f"'{word}'" if ">" in (word := need.partition(" ")[0]) else word for need in absent)
        raise BackendUnavailable(f"backend {name} needs {', '.join(absent)}: pip install {packages}")


def _third_party() -> list[EntryPoint]:
    return [
        entry for entry in entry_points(group=ENTRY_POINTS) if entry.name not in BUILTIN and entry.name not in ALIASES
    ]


def _load(entry: EntryPoint) -> Callable[[Optional[str]], Backend]:
    try:
        return cast("Callable[[Optional[str]], Backend]", entry.load())
    except (
        Exception
    ) as error:  # a foreign package may fail in any way; that must not end a listing or a run with a traceback
        raise BackendUnavailable(
            f"backend {entry.name} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
