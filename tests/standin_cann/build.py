"""Compiles the stand-in CANN runtime: the shared libraries that torch_npu and direct callers of the C API look for.

The result lies in a private cache directory, keyed by a digest of the sources, the compiler and the installed torch_npu, so that it is
made once. Builds that run at the same time do not disturb each other: each makes its own directory and renames it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import signatures

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
INCLUDE = HERE / "include"

RUNTIME = ("core.c", "runtime.c", "memory.c", "streams.c")
NAMES = ("libascendcl.so", "libacl_op_compiler.so", "libnnopbase.so", "libopapi.so")
FLAGS = ("-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", "-fvisibility=hidden", "-pthread")
EXTENSIONS = ("_C*.so", "lib/libtorch_npu.so", "lib/libtensorpipe.so", "lib/libnpu_profiler.so")


class StandinUnavailable(RuntimeError):
    """The stand-in cannot be made here; the text says what is missing and the next step."""


@dataclass(frozen=True)
class Build:
    """A finished build. ``root`` is the pretended installation (ASCEND_HOME_PATH), ``libraries`` its folder of libraries."""

    root: Path
    torch_npu: str
    """Version of the torch_npu whose symbols it serves; "" when there was none."""

    @property
    def libraries(self) -> Path:
        """Where the shared libraries are."""
        return self.root / "lib64"

    def library(self, name: str) -> Path:
        """One library by its file name."""
        return self.libraries / name


def compiler() -> str:
    """The C compiler ($CC, cc or gcc). StandinUnavailable when there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise StandinUnavailable("the stand-in CANN needs a C compiler: apt-get install gcc")


def build(need_torch_npu: bool = True, cache: Path | None = None) -> Build:
    """The build for this machine, made now or found in the cache.

    StandinUnavailable when the compiler, nm or readelf, or (if needed) torch_npu is missing.
    """
    cc, package = compiler(), _torch_npu()
    if package is None and need_torch_npu:
        raise StandinUnavailable("the stand-in CANN needs torch_npu to serve: pip install torch_npu==2.13.0")
    version = importlib.metadata.version("torch_npu") if package is not None else ""
    if package is not None:
        _tool("nm")
        _tool("readelf")
    place = cache or cache_directory()
    final = place / _digest(cc, version, package)
    if not final.is_dir():
        made = Path(tempfile.mkdtemp(prefix="making-", dir=place))
        try:
            _make(made, cc, package)
            try:
                made.rename(final)
            except OSError:
                if not final.is_dir():  # otherwise another process was quicker, with the same content
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return Build(final, version)


def cache_directory() -> Path:
    """The private folder of builds: $STANDIN_CACHE, or ``fiafuzz/standin`` under the user's cache."""
    base = os.environ.get("STANDIN_CACHE")
    place = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fiafuzz" / "standin"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        place = Path(tempfile.gettempdir()) / f"fiafuzz-standin-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise StandinUnavailable(f"{place} belongs to someone else: set STANDIN_CACHE to a folder of your own")
    return place


# ---- what torch_npu asks for -----------------------------------------------------------------------------------------


def _torch_npu() -> Path | None:
    spec = importlib.util.find_spec("torch_npu")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise StandinUnavailable(f"the stand-in CANN needs {name} to read torch_npu's libraries: apt-get install binutils")
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StandinUnavailable(f"{Path(command[0]).name} failed: {done.stderr.strip()[:2000]}")
    return done.stdout


def _symbols(library: Path, which: str) -> set[str]:
    """Names without a version: those of the system's own libraries all have one."""
    lines = (line.split() for line in _run(_tool("nm"), "-D", which, str(library)).splitlines())
    kinds = {"U"} if which == "--undefined-only" else set("TWBDVRiu")
    return {words[-1] for words in lines if len(words) > 1 and words[-2] in kinds and "@" not in words[-1]}


def _needed(library: Path) -> set[str]:
    return set(re.findall(r"\(NEEDED\).*\[(.+?)\]", _run(_tool("readelf"), "-dW", str(library))))


def _asked_for(package: Path) -> tuple[set[str], set[str]]:
    """Libraries and C functions that torch_npu needs and nothing on this machine provides."""
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.origin:
        raise StandinUnavailable("torch_npu is there but torch is not: pip install torch")
    folders = (Path(torch.origin).parent / "lib", package / "lib")
    there = {path.name: path for folder in folders for path in folder.glob("*.so*")}
    targets = [path for pattern in EXTENSIONS for path in sorted(package.glob(pattern))]
    needed = set().union(*map(_needed, targets))
    loader = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    known = set(re.findall(r"^\s+(\S+) ", _run(loader, "-p"), re.MULTILINE)) if loader else set()
    libraries = {name for name in needed if name not in there and name not in known and not name.startswith(("libpython", "ld-linux"))}
    undefined = set().union(*(_symbols(path, "--undefined-only") for path in targets))
    undefined -= set().union(*(_symbols(path, "--defined-only") for path in there.values()))
    undefined = {name for name in undefined if not re.match("_?Py", name)}
    mangled = sorted(name for name in undefined if name.startswith("_Z"))
    if mangled:
        raise StandinUnavailable(f"this torch_npu needs C++ functions of CANN, which cannot be stood in for: {' '.join(mangled[:5])}")
    return libraries, undefined


# ---- making it -------------------------------------------------------------------------------------------------------


def _digest(cc: str, version: str, package: Path | None) -> str:
    known = hashlib.blake2b(digest_size=12)
    files = (*sorted(SOURCES.iterdir()), *sorted(INCLUDE.rglob("*.h")), Path(__file__), Path(signatures.__file__))
    texts = [path.read_bytes() for path in files]
    for text in (cc.encode(), version.encode(), str(package).encode(), *texts):
        known.update(len(text).to_bytes(8, "little") + text)
    return known.hexdigest()


def _make(root: Path, cc: str, package: Path | None) -> None:
    libraries, undefined = _asked_for(package) if package is not None else (set(), set())
    for folder in ("lib64", "runtime", "compiler", "opp", "src"):
        (root / folder).mkdir()
    (root / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\n")
    shutil.copytree(INCLUDE, root / "include")
    source, lib = root / "src", root / "lib64"
    (source / "empty.c").write_text("int standin_nothing_here;\n")
    (source / "fia_table.inc").write_text(signatures.recorder_source())

    def link(name: str, *sources: Path, needs: tuple[str, ...] = ()) -> None:
        own = [f"-L{lib}", f"-I{SOURCES}", f"-I{source}", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{name}"]
        libs = ["-Wl,--no-as-needed", *(f"-l:{n}" for n in needs), "-lm", "-ldl"]
        _run(cc, *FLAGS, *own, "-o", str(lib / name), *map(str, sources), *libs)

    runtime = [SOURCES / name for name in RUNTIME]
    link("libacl_op_compiler.so", SOURCES / "opcompiler.c")
    if package is not None:
        link("libascendcl.so", *runtime)
        written = _symbols(lib / "libascendcl.so", "--defined-only") | _symbols(lib / "libacl_op_compiler.so", "--defined-only")
        (source / "rest.c").write_text(_rest(sorted(undefined - written)))
        runtime.append(source / "rest.c")
    link("libascendcl.so", *runtime)
    link("libnnopbase.so", SOURCES / "objects.c", SOURCES / "host.c", needs=("libascendcl.so",))
    opapi = [SOURCES / name for name in ("fia.c", "elementwise.c")]
    link("libopapi.so", *opapi, needs=("libnnopbase.so", "libascendcl.so"))
    for name in sorted(libraries - set(NAMES)):
        link(name, source / "empty.c")


def _rest(names: list[str]) -> str:
    """What torch_npu must find to be loaded but does not need for this operator: everything answers 0, but the old way to run
    operators (aclop...Execute) must not pretend to have computed something."""
    bodies = [(name, 500002 if name.startswith("aclop") and "Execute" in name else 0) for name in names]
    return "".join(f'__attribute__((visibility("default"))) long {name}(void) {{ return {value}; }}\n' for name, value in bodies)
