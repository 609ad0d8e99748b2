"""Workers serve where a program has replaced or closed its standard streams, and print to their fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import os, sys
from softs_fast.fleet.standard_streams import keep_standard_numbers, print_to


class Tee:
    def write(self, text):
        sys.__stdout__.write("tee " + text)

    def flush(self):
        sys.__stdout__.flush()


if sys.argv[2] == "replaced":
    sys.stdout = Tee()
if sys.argv[2] == "none":
    sys.stdout = sys.stderr = None
print_to(int(sys.argv[1]))
os.close(int(sys.argv[1]))
print("out")
print("err", file=sys.stderr)
os.write(2, b"native\\n")
keep_standard_numbers()
assert os.open(os.devnull, os.O_RDONLY) > 2
"""


@pytest.mark.parametrize(
    ("how", "closed"),
    [
        ("as it is", ""),
        ("replaced", ""),
        ("none", ""),
        ("closed", ">&-"),
        ("closed", "2>&-"),
        ("closed", "<&- >&- 2>&-"),
    ],
)
def test_what_is_printed_arrives_line_by_line(tmp_path: Path, how: str, closed: str) -> None:
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    read, write = os.pipe()
    command = f'exec "$0" "$1" {write} "$2" {closed}'
    subprocess.run(["sh", "-c", command, sys.executable, script, how], pass_fds=[write], check=True)
    os.close(write)
    printed = "tee outtee \n" if how == "replaced" else "out\n"
    with open(read) as file:
        assert file.read() == printed + "err\nnative\n"
