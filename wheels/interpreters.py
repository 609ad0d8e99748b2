"""Which interpreters of this machine get a wheel: one for each version of CPython that this package supports."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LOWEST, HIGHEST = (3, 11), (3, 14)

_PROBE = """
import json, pathlib, platform, sys, sysconfig
print(json.dumps({
    "path": sys.executable,
    "implementation": sys.implementation.name,
    "version": sys.version_info[:3],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "has_headers": pathlib.Path(sysconfig.get_path("include"), "Python.h").exists(),
    "machine": platform.machine(),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """What a Python says of itself."""

    path: Path
    implementation: str
    version: tuple[int, int, int]
    free_threaded: bool
    has_headers: bool
    machine: str

    @property
    def tag(self) -> str:
        """The tag of its wheels, as in `cp312`."""
        return f"cp{self.version[0]}{self.version[1]}"


def find() -> list[Interpreter]:
    """Return the interpreters of this machine, in the order in which they are preferred."""
    folders = [Path(folder) for folder in os.get_exec_path() if folder]
    folders += _newest_first(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("*"))
    names = [f"python3.{minor}" for minor in range(LOWEST[1], HIGHEST[1] + 1)]
    found = (probe(folder / name) for name in names for folder in folders if (folder / name).exists())
    return [interpreter for interpreter in found if interpreter is not None]


def probe(path: Path) -> Interpreter | None:
    """Return what an interpreter says of itself; nothing where it does not run, as a shim of pyenv without a version."""
    done = subprocess.run([str(path), "-I", "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    said = json.loads(done.stdout)
    # A shim of pyenv starts another file, which is the one to build with.
    return Interpreter(**(said | {"path": Path(said["path"]), "version": tuple(said["version"])}))


def choose(found: Sequence[Interpreter]) -> list[Interpreter]:
    """Return the first fit interpreter of each version, lowest version first."""
    chosen: dict[str, Interpreter] = {}
    for interpreter in found:
        if unfit(interpreter) is None:
            chosen.setdefault(interpreter.tag, interpreter)
    return sorted(chosen.values(), key=lambda interpreter: interpreter.version)


def unfit(interpreter: Interpreter) -> str | None:
    """Return why no wheel is built for an interpreter; nothing where one is."""
    if interpreter.implementation != "cpython":
        return f"{interpreter.implementation}, not CPython"
    if not LOWEST <= interpreter.version[:2] <= HIGHEST:
        return "not a version that softs-fast supports"
    if interpreter.free_threaded:
        return "free-threaded: _kernels is not declared to run without the GIL"
    if not interpreter.has_headers:
        return "has no Python.h"
    if interpreter.machine != "x86_64":
        return f"{interpreter.machine}, not x86_64"
    return None


def _newest_first(versions: Iterable[Path]) -> list[Path]:
    """Return the folders of programs of pyenv's versions."""
    return [
        folder / "bin" for folder in sorted(versions, key=lambda folder: _numbers(folder.name), reverse=True)
    ]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
