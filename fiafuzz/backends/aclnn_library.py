"""Finding and loading CANN's libraries: the runtime, the aclCreate helpers, and who provides aclnnFusedInferAttentionScore.

Where is looked, in order (spec/torch_npu.md 2.5 and 4): custom operator packages ($ASCEND_CUSTOM_OPP_PATH, then $ASCEND_OPP_PATH/vendors
in the order of its config.ini), the transformer library of split installations (libopapi_transformer.so), other libopapi_*.so, libopapi.so.
A version of the operator is taken from the first library that has both of its functions.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from . import ascend
from .aclnn_signature import APIS, LAUNCH_TYPES, argument_types, function_name, workspace_function_name
from .protocol import BackendUnavailable

RUNTIME = "libascendcl.so"
HELPERS = "libnnopbase.so"
TRANSFORMER = "libopapi_transformer.so"
OPERATORS = "libopapi.so"
CUSTOM = "libcust_opapi.so"
LOADER_CACHE = Path("/etc/ld.so.cache")
MAX_NAMED = 6
"""Places that a message names."""

_DIRS = ("lib64", "runtime/lib64", f"{platform.machine()}-linux/lib64")
_BUILT_IN = "opp/built-in/op_impl/ai_core/tbe/op_api/lib/linux"
_INSTALL = (
    "install the CANN toolkit and source its set_env.sh (for example /usr/local/Ascend/ascend-toolkit/set_env.sh), "
    "or set ASCEND_HOME_PATH and LD_LIBRARY_PATH"
)
_INSTALL_OPERATOR = (
    "install the operator packages of this CANN release (Ascend-cann-*-ops for the SoC), or the run package of an "
    "operator build and set ASCEND_CUSTOM_OPP_PATH"
)


def home(env: Optional[Mapping[str, str]] = None) -> Optional[Path]:
    """The CANN installation that the environment names, if any."""
    env = os.environ if env is None else env
    named = env.get("ASCEND_HOME_PATH") or env.get("ASCEND_TOOLKIT_HOME")
    return Path(named) if named else None


def loader_dirs(env: Optional[Mapping[str, str]] = None) -> tuple[Path, ...]:
    """The folders of LD_LIBRARY_PATH."""
    env = os.environ if env is None else env
    return tuple(Path(part) for part in env.get("LD_LIBRARY_PATH", "").split(":") if part)


def candidates(name: str, env: Optional[Mapping[str, str]] = None) -> tuple[str, ...]:
    """What to hand to the loader for a library of CANN itself, best first: full paths of files that exist in the loader's own order,
    the bare name when the system's cache has it, then files of the installation that the environment names."""
    env = os.environ if env is None else env
    found = [str(folder / name) for folder in loader_dirs(env) if (folder / name).is_file()]
    if _in_loader_cache(name):
        found.append(name)
    root = home(env)
    if root is not None:
        found.extend(str(root / part / name) for part in _DIRS if (root / part / name).is_file())
    return tuple(dict.fromkeys(found))


def operator_candidates(env: Optional[Mapping[str, str]] = None) -> tuple[str, ...]:
    """What may provide the operator, best first; see the module's text."""
    env = os.environ if env is None else env
    found: list[str] = [str(path) for path in _custom(env)]
    found.extend(candidates(TRANSFORMER, env))
    folders = [*loader_dirs(env), *(root / part for root in (home(env),) if root is not None for part in _DIRS)]
    for folder in folders:
        found.extend(str(path) for path in _sorted_glob(folder, "libopapi_*.so"))
    found.extend(candidates(OPERATORS, env))
    root = home(env)
    if root is not None:
        for machine in (platform.machine(), ""):
            found.extend(str(path) for path in _sorted_glob(root / _BUILT_IN / machine, "libopapi*.so"))
    return tuple(dict.fromkeys(found))


def missing(env: Optional[Mapping[str, str]] = None) -> str:
    """Why the operator cannot be called on this machine, with the next step; "" when nothing is known to be missing.

    Loads nothing: it looks for files, so that lists of backends cost nothing and cannot fail.
    """
    env = os.environ if env is None else env
    for name in (RUNTIME, HELPERS):
        if not candidates(name, env):
            trouble = ascend.trouble(ascend.look(env))
            return f"{name} was not found in {_looked_at(env)}; {trouble.next_step if trouble is not None else _INSTALL}"
    if not operator_candidates(env):
        return f"no {CUSTOM}, {TRANSFORMER} or {OPERATORS} was found in {_looked_at(env)}; {_INSTALL_OPERATOR}"
    return ""


def _custom(env: Mapping[str, str]) -> Iterator[Path]:
    for part in env.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        if part:
            yield from _packages(Path(part), [])
    opp = env.get("ASCEND_OPP_PATH") or (str(found / "opp") if (found := home(env)) is not None else "")
    if opp:
        yield from _packages(Path(opp) / "vendors", _load_priority(Path(opp) / "vendors" / "config.ini"))


def _packages(folder: Path, first: list[str]) -> Iterator[Path]:
    """libcust_opapi.so of the package that the folder is, and of those in it: the named ones first, then by name."""
    below = "op_api/lib/" + CUSTOM
    if (folder / below).is_file():
        yield folder / below
    found = {path.parent.parent.parent.name: path for path in _sorted_glob(folder, f"*/{below}")}
    for name in [*(n for n in first if n in found), *(n for n in found if n not in first)]:
        yield found[name]


def _load_priority(config: Path) -> list[str]:
    """The vendors in the order of a config.ini ("load_priority=a,b"); [] when there is none."""
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        key, mark, value = line.partition("=")
        if mark and key.strip() == "load_priority":
            return [part.strip() for part in value.split(",") if part.strip()]
    return []


def _sorted_glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    except OSError:
        return []


def _in_loader_cache(name: str) -> bool:
    try:
        return name.encode() + b"\0" in LOADER_CACHE.read_bytes()
    except OSError:
        return False


def _looked_at(env: Mapping[str, str]) -> str:
    root = home(env)
    places = [f"LD_LIBRARY_PATH ({_few([str(p) for p in loader_dirs(env)]) or 'not set'})"]
    places.append(f"ASCEND_HOME_PATH ({root}{'' if root.is_dir() else ', which does not exist'})" if root else "ASCEND_HOME_PATH (not set)")
    return f"{' or '.join(places)} or the system's library cache"


def _few(items: list[str]) -> str:
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return ", ".join(items[:MAX_NAMED]) + more


@dataclass(frozen=True)
class Entry:
    """One version of the operator: its two functions and the file that they are in."""

    api: str
    workspace: Any
    launch: Any
    path: str
    library: Any = None


@dataclass
class Libraries:
    """CANN's libraries, loaded. ``entries`` by api ("v1".."v5") holds the versions that were found; ``paths`` says which file serves
    what; ``failed`` are operator libraries that could not be loaded, with the loader's words."""

    runtime: Any
    helpers: Any
    entries: dict[str, Entry] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    looked: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)

    def helper(self, name: str, types: tuple[Any, ...], result: Any) -> Any:
        """One of the aclCreate and aclDestroy functions, with its C types; BackendUnavailable when no library has it."""
        function = self.helper_if_there(name, types, result)
        if function is None:
            raise BackendUnavailable(f"no library here has {name}; looked in {HELPERS} and the operator libraries; {_INSTALL}")
        return function

    def helper_if_there(self, name: str, types: tuple[Any, ...], result: Any) -> Any:
        """The same; None when no library has it."""
        for library in (self.helpers, *(entry.library for entry in self.entries.values())):
            try:
                function = library[name]
            except AttributeError:
                continue
            function.argtypes, function.restype = types, result
            return function
        return None

    def need(self, api: str) -> Entry:
        """One version of the operator; BackendUnavailable when no library has it."""
        if api not in self.entries:
            raise BackendUnavailable(f"no library here has {function_name(api)}; found: {', '.join(self.entries) or 'none'}. Looked "
                                     f"in {_few(list(self.looked))}. Take another version of the operator, or {_INSTALL_OPERATOR}")
        return self.entries[api]


def load(env: Optional[Mapping[str, str]] = None) -> Libraries:
    """Load the runtime, the helpers and every version of the operator that is there.

    BackendUnavailable when the runtime, the helpers or every version of the operator is missing or cannot be loaded: the text says
    what was looked for and what to do.
    """
    env = os.environ if env is None else env
    problem = missing(env)
    if problem:
        raise BackendUnavailable(f"no CANN to call: {problem}")
    runtime = _first(RUNTIME, candidates(RUNTIME, env))
    helpers = _first(HELPERS, candidates(HELPERS, env))
    found = Libraries(runtime, helpers, looked=operator_candidates(env))
    for path in found.looked:
        if len(found.entries) == len(APIS):
            break
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            found.failed[path] = str(error)
            continue
        for api in APIS:
            if api not in found.entries:
                entry = _entry(library, api, path)
                if entry is not None:
                    found.entries[api] = entry
    if not found.entries:
        why = _few([f"{path}: {text}" for path, text in found.failed.items()])
        raise BackendUnavailable(f"no library here has {function_name('v1')} or a later version; looked in {_few(list(found.looked))}"
                                 + (f" (not loaded: {why})" if why else "") + f"; {_INSTALL_OPERATOR}")
    found.paths = {
        RUNTIME: file_of(runtime["aclInit"]) or str(runtime._name),
        HELPERS: str(helpers._name),
        **{function_name(entry.api): entry.path for entry in found.entries.values()},
    }
    return found


def _first(name: str, paths: tuple[str, ...]) -> Any:
    said = []
    for path in paths:
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            said.append(str(error))
    raise BackendUnavailable(f"{name} cannot be loaded: {'; '.join(said)}; source CANN's set_env.sh, so that the loader finds all of it")


def _entry(library: Any, api: str, path: str) -> Optional[Entry]:
    try:
        workspace, launch = library[workspace_function_name(api)], library[function_name(api)]
    except AttributeError:
        return None
    workspace.argtypes, workspace.restype = argument_types(api), ctypes.c_int32
    launch.argtypes, launch.restype = LAUNCH_TYPES, ctypes.c_int32
    return Entry(api, workspace, launch, file_of(workspace) or path, library)


class _DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def file_of(function: Any) -> str:
    """The file that a function really comes from: a handle also answers for the libraries that its own needs. "" when unknown."""
    try:
        dladdr = ctypes.CDLL(None).dladdr
    except (AttributeError, OSError):
        return ""
    dladdr.argtypes, dladdr.restype = (ctypes.c_void_p, ctypes.POINTER(_DlInfo)), ctypes.c_int
    info = _DlInfo()
    if not dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info)) or not info.file:
        return ""
    return os.fsdecode(info.file)
