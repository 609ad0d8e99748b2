"""A program that workers cannot import is told so before any of them starts."""

from __future__ import annotations

import multiprocessing.spawn
import subprocess
import sys
from pathlib import Path

import pytest

from softs_fast.fleet import Workers

PROGRAM = """
import factories
import softs_fast as sf


def make_worker():
    return factories.make_worker()


if __name__ == "__main__":
    try:
        with sf.Fleet({make}):
            print("it serves")
    except sf.ConfigError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("way", "make", "said"),
    [
        ("-", "make_worker", "make_worker is of a program without a file (a notebook, "),
        ("-", "factories.make_worker", "it serves"),
        ("-c", "make_worker", "make_worker is of a program without a file (a notebook, "),
        ("-c", "factories.make_worker", "it serves"),
        ("file", "make_worker", "it serves"),
    ],
)
def test_where_the_program_is(tmp_path: Path, way: str, make: str, said: str) -> None:
    program = PROGRAM.format(make=make)
    (tmp_path / "program.py").write_text(program)
    arguments = {"-": ["-"], "-c": ["-c", program], "file": [str(tmp_path / "program.py")]}[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=program,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
    )
    assert said in done.stdout


def test_a_program_that_a_debugger_runs_may_start_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__spec__")
    with Workers(print, {}):
        multiprocessing.spawn.get_preparation_data("worker 0")
