"""What an Ascend machine offers, read from its files and variables alone: SoC families, CANN, driver, operator packages, devices.

Nothing here imports torch or loads a library of CANN, so that it is quick and cannot be brought down by a broken install.
Sources: spec/torch_npu.md 1, 2.5, 3.4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Optional

from fiafuzz.model.profiles import PROFILES

RUNTIME_LIBRARY = "libascendcl.so"
DEVICE_VARIABLE = "FIAFUZZ_DEVICE"
VISIBLE_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
DRIVER = "usr/local/Ascend/driver"
HOMES = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann", "usr/local/Ascend/latest", "usr/local/Ascend/nnrt/latest")
"""Where CANN is installed by default, below the root of the file system."""

MAX_INFO_BYTES = 1 << 16


# ---- SoC families ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """One family of SoCs. ``product`` is a case's product, None when no profile covers it; ``numbers`` is the range of
    torch_npu's SoC numbers [first, end)."""

    name: str
    pattern: str
    numbers: tuple[int, int]
    product: Optional[str]


FAMILIES: tuple[Family, ...] = (
    Family("A2", r"Ascend910B\w*(-\w+)?$", (220, 240), "a2"),
    Family("A3", r"Ascend910_93\w*$", (250, 260), "a3"),
    Family("Ascend 950", r"Ascend950\w*$", (260, 1 << 31), "950"),
    Family("Ascend 310B", r"Ascend310B\w*$", (240, 244), None),
    Family("Ascend 310P", r"Ascend310P\w*$", (200, 206), None),
    Family("Ascend 910A", r"Ascend910(A|ProA|ProB|PremiumA)?$", (100, 105), None),
    Family("Ascend 310", r"Ascend310$", (0, 0), None),
)


def family_of(soc: str) -> Optional[Family]:
    """The family of a SoC name as the runtime spells it (Ascend910B2, Ascend910_9391, Ascend950PR_9579); None for an unknown
    name."""
    return next((f for f in FAMILIES if re.match(f.pattern, soc)), None)


def family_of_number(number: int) -> Optional[Family]:
    """The family of one of torch_npu's SoC numbers."""
    return next((f for f in FAMILIES if f.numbers[0] <= number < f.numbers[1]), None)


def profiles_of(soc: str, apis: Optional[tuple[str, ...]] = None) -> tuple[str, ...]:
    """The profiles that a device of that name can stand for, document profiles first; () when none covers it. ``apis`` narrows
    them to those of some API versions."""
    family = family_of(soc)
    if family is None or family.product is None:
        return ()
    return tuple(p.name for p in PROFILES.values() if p.product == family.product and (apis is None or p.api in apis))


def about_soc(soc: str) -> str:
    """Why no profile covers a SoC, with what is covered; "" when one does."""
    if profiles_of(soc):
        return ""
    family = family_of(soc)
    known = "Ascend910B* (A2), Ascend910_93* (A3) and Ascend950*"
    what = f"a {family.name}" if family is not None else "of no known family"
    return f"the device {soc!r} is {what}: no profile covers it; covered are {known}"


# ---- CANN --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """What was found. ``home`` is CANN's folder by ASCEND_HOME_PATH (or ASCEND_TOOLKIT_HOME), ``installed`` folders of CANN that
    lie at a usual place, ``runtime`` where the runtime library was found ("" when nowhere), ``devices`` the device nodes."""

    home: str = ""
    opp: str = ""
    runtime: str = ""
    installed: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    visible: Optional[str] = None
    versions: Mapping[str, str] = field(default_factory=dict)


def look(variables: Optional[Mapping[str, str]] = None, root: Path = Path("/")) -> Environment:
    """Look around: ``variables`` are the environment's (default: of this process), ``root`` the file system's root."""
    env = os.environ if variables is None else variables
    home = env.get("ASCEND_HOME_PATH", "") or env.get("ASCEND_TOOLKIT_HOME", "")
    installed = tuple(str(root / h) for h in HOMES if (root / h).is_dir())
    return Environment(
        home,
        env.get("ASCEND_OPP_PATH", ""),
        find_library(RUNTIME_LIBRARY, env, root),
        installed,
        _device_nodes(root),
        env.get(VISIBLE_VARIABLE),
        MappingProxyType(dict(_versions(env, home, root))),
    )


def find_library(name: str, env: Mapping[str, str], root: Path = Path("/")) -> str:
    """Where the loader would find a shared library: LD_LIBRARY_PATH, then its cache and the usual folders; "" for nowhere."""
    for folder in env.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    usual = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", f"usr/lib/{os.uname().machine}-linux-gnu")
    for folder in usual:
        if (root / folder / name).exists():
            return str(root / folder / name)
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return ""
    found = re.search(rb"\x00(/[^\x00]*/" + re.escape(name.encode()) + rb")\x00", cache)
    return found[1].decode(errors="replace") if found else ""


def _device_nodes(root: Path) -> tuple[int, ...]:
    try:
        names = os.listdir(root / "dev")
    except OSError:
        return ()
    return tuple(sorted(int(n[7:]) for n in names if re.fullmatch(r"davinci\d{1,4}", n)))


def _versions(env: Mapping[str, str], home: str, root: Path) -> Iterator[tuple[str, str]]:
    """Versions that can be read from files: CANN, operator package, self-built operator packages, driver, firmware."""
    if home:
        base = Path(home)
        places = [base, *sorted(base.glob("*-linux"))]
        files = [f for p in places for f in sorted(p.glob("ascend_*_install.info"))]
        found = next((v for f in (*files, base / "version.cfg", base / "version.info") if (v := read_version(f))), "")
        if found:
            yield "cann files", found
    opp = env.get("ASCEND_OPP_PATH", "") or (str(Path(home) / "opp") if home else "")
    if opp:
        found = read_version(Path(opp) / "version.info")
        if found:
            yield "opp", found
    for vendor in operator_packages(env):
        yield f"operators {vendor.name}", read_version(vendor / "version.info") or "unknown version"
    for name in ("driver", "firmware"):
        found = read_version(root / f"usr/local/Ascend/{name}/version.info")
        if found:
            yield name, found


def operator_packages(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders of self-built operator packages that are looked into before CANN's own, in that order."""
    custom = [Path(p) for p in env.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if p]
    opp = env.get("ASCEND_OPP_PATH", "")
    vendors = sorted(Path(opp, "vendors").glob("*")) if opp else []
    return tuple(p for p in (*custom, *vendors) if (p / "op_api").is_dir())


def read_version(file: Path) -> str:
    """The version in one of Ascend's information files (``Version=8.5.0``, ``version=[9.1.0]`` ...), "" without one."""
    try:
        with open(file, "rb") as stream:
            text = stream.read(MAX_INFO_BYTES).decode(errors="replace")
    except OSError:
        return ""
    found = re.search(r"^\s*\w*version\w*\s*=\s*\[?\"?([\w.\-+:]{1,64})", text, re.IGNORECASE | re.MULTILINE)
    return found[1].rpartition(":")[2] if found else ""


# ---- what is missing ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """One thing that is in the way, and what to do next."""

    what: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.what}: {self.next_step}"


def trouble(env: Environment) -> Optional[Trouble]:
    """What keeps CANN from being used, the first thing first; None when it looks complete."""
    source = _set_env(env)
    if env.home:
        missing = [f for f in ("runtime", "compiler") if not os.path.isdir(os.path.join(env.home, f))]
        if missing:
            return Trouble(
                f"ASCEND_HOME_PATH names {env.home}, which has no folder {' and no folder '.join(missing)}",
                f"half a CANN does not load; install the toolkit whole, then {source}",
            )
        if not env.opp or not os.path.isdir(env.opp):
            what = f"names {env.opp}, which is no folder" if env.opp else "is not set"
            return Trouble(f"ASCEND_HOME_PATH is set, but ASCEND_OPP_PATH {what}", f"{source}, which sets both")
    if not env.runtime:
        if env.home or env.installed:
            return Trouble(f"CANN lies in {env.home or env.installed[0]}, but the loader does not find {RUNTIME_LIBRARY}", source)
        return Trouble(
            f"no CANN here ({RUNTIME_LIBRARY} is neither on LD_LIBRARY_PATH nor in a system folder)",
            "install the Ascend CANN toolkit and 'source .../set_env.sh'",
        )
    if env.visible is not None and visible_trouble(env.visible):
        return Trouble(f"{VISIBLE_VARIABLE}={env.visible!r} {visible_trouble(env.visible)}", "write numbers in ascending order, 0,2,3")
    return None


def _set_env(env: Environment) -> str:
    for home in (env.home, *env.installed):
        for place in (Path(home), Path(home).parent):
            if home and (place / "set_env.sh").is_file():
                return f"'source {place / 'set_env.sh'}'"
    return "'source .../set_env.sh' of the CANN installation"


def visible_trouble(value: str) -> str:
    """What is wrong with a value of ASCEND_RT_VISIBLE_DEVICES, in words; "" when nothing is.

    The runtime reads numbers in ascending order and stops at the first item that is none, a blank included.
    """
    if not value.strip():
        return "hides every device"
    items = value.split(",")
    wrong = next((item for item in items if not re.fullmatch(r"\d+", item)), None)
    if wrong is not None:
        return f"is read only up to {wrong!r}, which is no number"
    numbers = [int(item) for item in items]
    if sorted(set(numbers)) != numbers:
        return "is not in ascending order, so that the runtime stops reading it early"
    return ""


def why_no_cann() -> str:
    """Why CANN cannot be used here, in one line with the next step; "" when it looks usable."""
    found = trouble(look())
    return str(found) if found is not None else ""


def chosen_device(variables: Optional[Mapping[str, str]] = None) -> int:
    """The device index among the visible ones: FIAFUZZ_DEVICE, by default 0. ValueError for anything but a small number."""
    text = (os.environ if variables is None else variables).get(DEVICE_VARIABLE, "").strip() or "0"
    if not re.fullmatch(r"\d{1,4}", text):
        raise ValueError(f"{DEVICE_VARIABLE}={text!r} is no device index: give 0, 1, ... as CANN numbers the visible devices")
    return int(text)
