"""Standard streams of the fleet's process and of its workers, also where a program has replaced or closed its own."""

from __future__ import annotations

import os
import sys

__all__ = ["keep_standard_numbers", "print_to"]


def keep_standard_numbers() -> None:
    """Open /dev/null as each of the descriptors 0, 1 and 2 that is closed.

    The next pipe or socket would have its number otherwise, and what a process prints would go there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def print_to(descriptor: int) -> None:
    """Have standard output and standard error of this process go to a descriptor, line by line.

    A stream that the program has put in the place of `sys.stdout` stays there, and what it passes on to the former one
    goes to the descriptor.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(descriptor, number)
        former = getattr(sys, f"__{name}__")
        if former is None:
            # It was closed when Python started.
            former = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, f"__{name}__", former)
        else:
            former.reconfigure(line_buffering=True)
        if getattr(sys, name) is None:
            setattr(sys, name, former)
