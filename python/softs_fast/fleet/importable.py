"""Whether another process can import what a fleet calls there."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

from ..errors import ConfigError

__all__ = ["check_importable", "make_main_importable"]


def make_main_importable() -> None:
    """Give `__main__` the attribute that `multiprocessing` needs to start a process; debuggers such as pdb delete it."""
    main = sys.modules["__main__"]
    if not hasattr(main, "__spec__"):
        main.__spec__ = None


def check_importable(make_worker: Any) -> None:
    """Check that a new process can get a function.

    Raises:
        ConfigError: it cannot be pickled, or it is of a program that has no file.
    """
    try:
        pickled = pickle.dumps(make_worker)
    except Exception as error:
        raise ConfigError(
            f"make_worker cannot be imported by another process; make it a function of a module: {error}"
        ) from error
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None:
        return
    # That of a program with a file is absolute, that of one from standard input is "<stdin>".
    if file is not None and not os.path.exists(file):
        # New processes import it, whichever function they are to call.
        raise ConfigError(
            f"this program has no file ({file!r}), so workers cannot import it; save it as a file and run that"
        )
    if file is None and b"__main__" in pickled:
        raise ConfigError(
            "make_worker is of a program without a file (of python -c, or a notebook), so workers cannot import it; put it "
            "into a module of its own and import it from there"
        )
