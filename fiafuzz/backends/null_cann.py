"""The smallest thing that lets torch_npu be imported where CANN is not installed: libraries whose functions all return 0.

Shapes and dtypes can then be inferred on meta tensors; no device and no arithmetic is there. The libraries are compiled once
into a private folder of the user, ``fiafuzz doctor`` and the backend torch-npu:meta use them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from .protocol import BackendUnavailable

TOOLS = ("cc", "nm", "readelf")
CARRIER = "libascendcl.so"
"""The library that holds every function; the others only have to exist."""

_FORM = "1"
"""Raised when what is built changes."""

_PLAIN_C = re.compile(r"[A-Za-z]\w*$")


def why_not() -> str:
    """Why it cannot be built here, in one line with the next step; "" when it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not missing:
        return ""
    return (
        f"CANN is not installed, and without it a C compiler is needed to stand in for it; missing: {', '.join(missing)} "
        "(install gcc and binutils)"
    )


def load() -> Path:
    """Build the libraries if they are not there yet, and load them into this process. Returns their folder.

    torch must be imported already. BackendUnavailable, with the next step, when they cannot be built or loaded.
    """
    folder = build()
    for library in sorted(folder.glob("*.so")):
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise BackendUnavailable(f"the stand-in for CANN in {folder} does not load ({error}); remove that folder") from error
    return folder


def build() -> Path:
    """The folder with the libraries for the torch_npu that is installed; compiled at the first call."""
    targets = _targets()
    store = cache_folder()
    folder = store / f"null-cann-{_key(targets)}"
    if folder.is_dir():
        _check_private(folder)
        return folder
    reason = why_not()
    if reason:
        raise BackendUnavailable(reason)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=store))
    try:
        compile_into(scratch, missing_libraries(targets), missing_functions(targets))
        try:
            os.rename(scratch, folder)
        except OSError:  # somebody else was quicker: theirs is as good
            if not folder.is_dir():
                raise
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendUnavailable(f"the stand-in for CANN cannot be built in {store}: {_said(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/fiafuzz`` or ``~/.cache/fiafuzz``, made for this user alone. BackendUnavailable when that folder cannot
    be made or could be written by others, since libraries are loaded from it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        parent = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        folder = parent / "fiafuzz"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise BackendUnavailable(f"no folder for compiled files: {error}; set XDG_CACHE_HOME to a folder of yours") from error
    _check_private(folder)
    return folder


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise BackendUnavailable(
            f"{folder} is not a folder that only you can write: libraries are not loaded from there (chmod 700 it, or set XDG_CACHE_HOME)"
        )


def _targets() -> list[Path]:
    """The libraries of torch_npu that an import loads."""
    spec = find_spec("torch_npu")
    if spec is None or not spec.submodule_search_locations:
        raise BackendUnavailable("torch_npu is not installed: pip install torch_npu")
    root = Path(next(iter(spec.submodule_search_locations)))
    found = [*sorted(root.glob("_C*.so")), *(root / "lib" / n for n in ("libtorch_npu.so", "libtensorpipe.so", "libnpu_profiler.so"))]
    return [path for path in found if path.is_file()]


def _key(targets: Iterable[Path]) -> str:
    """What the build depends on, as hexadecimal digits: machine, torch and the libraries of torch_npu."""
    digest = hashlib.blake2b(digest_size=8)
    torch = find_spec("torch")
    for text in (_FORM, platform.machine(), platform.python_version(), torch.origin if torch is not None else ""):
        digest.update(f"{text}\n".encode())
    for path in targets:
        found = path.stat()
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def missing_libraries(targets: Sequence[Path]) -> list[str]:
    """Names of the shared libraries that the targets need and that the loader does not find."""
    near = {p.name for folder in {t.parent for t in targets} for p in (*folder.glob("*.so*"), *folder.glob("lib/*.so*"))}
    torch = find_spec("torch")
    if torch is not None and torch.origin:
        near |= {p.name for p in (Path(torch.origin).parent / "lib").glob("*.so*")}
    needed: set[str] = set()
    for target in targets:
        needed.update(re.findall(r"\(NEEDED\)[^\[]*\[([^\]/]+)\]", _output("readelf", "-dW", str(target))))
    return sorted(name for name in needed - near if not _loads(name))


def missing_functions(targets: Sequence[Path]) -> list[str]:
    """Undefined symbols of the targets that neither they themselves nor torch, Python or the system define."""
    wanted: set[str] = set()
    own: set[str] = set()
    for target in targets:
        for line in _output("nm", "-D", str(target)).splitlines():
            *_, kind, symbol = line.split()
            name = symbol.partition("@")[0]
            if kind == "U":
                wanted.add(name)
            elif kind not in ("w", "v"):
                own.add(name)
    known = _loaded()
    found = sorted(name for name in wanted - own if not any(_has(library, name) for library in known))
    strange = [name for name in found if not _PLAIN_C.match(name) or name.startswith("_Z")]
    if strange:
        raise BackendUnavailable(
            f"this torch_npu needs {strange[0]}{' and others' if len(strange) > 1 else ''}, which only a real "
            "CANN or the torch version that it was built for has; 'fiafuzz doctor' compares the versions"
        )
    return found


def _loaded() -> list[ctypes.CDLL]:
    """Python, the system's libraries and torch's, to ask for symbols."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_python.so", "libtorch.so", "libtorch_cpu.so", "libc10.so", "libshm.so")
    return [ctypes.CDLL(None), *(ctypes.CDLL(str(folder / n)) for n in names if (folder / n).exists())]


def _has(library: ctypes.CDLL, name: str) -> bool:
    try:
        library[name]
    except (AttributeError, ValueError):
        return False
    return True


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return name not in str(error) or "cannot open shared object" not in str(error)
    return True


def compile_into(folder: Path, libraries: Sequence[str], functions: Sequence[str]) -> None:
    """Compile the stand-in: every function into one library, the other libraries empty."""
    carrier = CARRIER if CARRIER in libraries else (libraries[0] if libraries else CARRIER)
    code = "".join(f"long {name}(void) {{ return 0; }}\n" for name in functions)
    (folder / "functions.c").write_text(code or "int fiafuzz_null_cann;\n")
    (folder / "empty.c").write_text("int fiafuzz_null_cann_empty;\n")
    for name in {carrier, *libraries}:
        source = "functions.c" if name == carrier else "empty.c"
        _output(
            "cc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-w", f"-Wl,-soname,{name}", "-o", str(folder / name), str(folder / source)
        )


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=True)
    return done.stdout


def _said(error: Exception) -> str:
    text = getattr(error, "stderr", "") or str(error)
    return " ".join(str(text).split())[-300:]
