"""Runs a program written for `softs` on softs-fast, without changes to it.

    python -m softs_fast.dropin train.py --epochs 3
    python -m softs_fast.dropin -m package.train

Python is started again with the folder `_dropin` in front of PYTHONPATH. The package `softs` in that folder makes
`softs` and everything below it aliases of the modules of softs-fast, so classes are identical and pickles of one
are valid for the other. Child processes and subprocesses inherit PYTHONPATH, so they use the drop-in too.
Everything else is left to Python: sys.argv, `__main__`, sys.path, exit codes, signals.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from .errors import SoftsError

__all__ = ["install", "main"]

_USAGE = "usage: python [python options] -m softs_fast.dropin [-m MODULE | -c CODE | SCRIPT] [arguments]"
_SHIM = Path(__file__).with_name("_dropin")
_THIS = "softs_fast.dropin"


def install() -> None:
    """Make `softs` an alias of softs-fast in this process.

    Child processes do not inherit this; those of `python -m softs_fast.dropin` do.

    Raises:
        SoftsError: the real softs has been imported already.
    """
    package = importlib.import_module("softs_fast")
    present = sys.modules.get("softs")
    if present not in (None, package) and not hasattr(present, "STANDS_IN_FOR_SOFTS"):
        origin = getattr(present, "__file__", "memory")
        raise SoftsError(f"softs is already imported from {origin}; install the drop-in before that")
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
    sys.modules["softs"] = package


def main() -> NoReturn:
    """Replace this process by a Python that runs the program named on the command line.

    Raises:
        SystemExit: the command line is wrong, or asks for help.
    """
    arguments = sys.argv[1:]
    if not arguments:
        _refuse(_USAGE)
    if arguments[0] in ("-h", "--help"):
        print(f"{_USAGE}\n\n{__doc__}")
        sys.exit(0)
    if sys.flags.ignore_environment:
        _refuse("python -E and -I ignore PYTHONPATH, which this needs; leave them out")
    shadow = _shadow(arguments)
    if shadow is not None:
        _refuse(f"{shadow} lies beside the program and would be imported as softs; move or rename it")
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_SHIM), *([inherited] if inherited else [])])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *_python_options(), *arguments])


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `softs.x` by importing `softs_fast.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("softs.") or importlib.util.find_spec(_real_name(fullname)) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes the module that is in sys.modules now. Returning the real module from
        # create_module instead would overwrite its __spec__.
        sys.modules[module.__name__] = importlib.import_module(_real_name(module.__name__))


def _refuse(text: str) -> NoReturn:
    print(f"{_THIS}: {text}", file=sys.stderr)
    sys.exit(2)


def _real_name(alias: str) -> str:
    return "softs_fast" + alias.removeprefix("softs")


def _shadow(arguments: list[str]) -> Path | None:
    """Return a softs in the folder that Python searches first: the script's, or the current one for -m."""
    if sys.flags.safe_path:
        return None
    folder = Path.cwd() if arguments[0].startswith("-") else Path(arguments[0]).resolve()
    if folder.is_file():
        folder = folder.parent
    candidates = (folder / "softs" / "__init__.py", folder / "softs.py")
    return next((path for path in candidates if path.is_file()), None)


def _python_options() -> list[str]:
    """Return the options, such as `-u`, that stand before `-m softs_fast.dropin` on the command line."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    if options and options[-1] == _THIS:
        options.pop()
    last = options.pop().removesuffix(_THIS).removesuffix("m") if options else "-"
    return options if last == "-" else [*options, last]


if __name__ == "__main__":
    main()
