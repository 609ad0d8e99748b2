"""Whether another process can import what a fleet calls there, and whether this one is such a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from typing import Any

from ..errors import ConfigError, FleetError

__all__ = ["check_importable", "check_runs", "hide_main", "make_main_importable"]


def check_runs() -> None:
    """Check that this process runs its program, and does not import it to become a worker.

    Raises:
        FleetError: it does.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise FleetError(
            "a worker imports this program, which starts workers of its own then; put their start under "
            'if __name__ == "__main__":'
        )


def make_main_importable() -> None:
    """Give `__main__` the attribute that `multiprocessing` needs to start a process; debuggers such as pdb delete it."""
    main = sys.modules["__main__"]
    if not hasattr(main, "__spec__"):
        main.__spec__ = None


def hide_main() -> None:
    """Have workers of this process not import its program, which is not the user's and of which they need nothing."""
    vars(sys.modules["__main__"]).pop("__file__", None)


def check_importable(make_worker: Any) -> None:
    """Check that a new process can get a function.

    Raises:
        ConfigError: it cannot be pickled, or it is of a program that has no file, as a notebook.
    """
    try:
        pickled = pickle.dumps(make_worker)
    except Exception as error:
        raise ConfigError(
            f"make_worker cannot be imported by another process; make it a function of a module: {error}"
        ) from error
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None or b"__main__" not in pickled:
        return
    # That of a program with a file is absolute, that of one from standard input is "<stdin>".
    if not os.path.exists(getattr(main, "__file__", None) or ""):
        raise ConfigError(
            "make_worker is of a program without a file (a notebook, python -c, or standard input), so workers cannot "
            "import it; put it into a module of its own and import it from there"
        )
