"""The queue of calls and the messages between ranks have no data race that ThreadSanitizer sees."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "csrc"
# With the loops without vector instructions alone; the program stands in for the others.
SOURCES = [
    CSRC / "checks" / "threads_of_a_group.cpp",
    *(file for file in sorted((CSRC / "collective").glob("*.cpp")) if file.name != "words.cpp"),
    *(CSRC / "cpu" / f"{name}.cpp" for name in ("features", "reduce", "reduce_scalar")),
]
FLAGS = ["-std=c++20", "-O1", "-g", "-ffp-contract=off", "-fsanitize=thread", "-pthread", f"-I{CSRC}"]
# What ranks share is at one address in all of them, so that their accesses are compared.
ONE_ADDRESS = ["-Dmmap=map_once", "-Dmunmap=unmap_once"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_ranks_that_are_threads_have_no_race(tmp_path: Path) -> None:
    trial = tmp_path / "trial.cpp"
    trial.write_text("int main() {}\n")
    command = ["g++", "-fsanitize=thread", str(trial), "-o", str(tmp_path / "trial")]
    if shutil.which("g++") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no g++ with ThreadSanitizer on this machine")
    program = tmp_path / "program"
    subprocess.run(["g++", *FLAGS, *ONE_ADDRESS, *map(str, SOURCES), "-o", str(program)], check=True)
    # ThreadSanitizer needs addresses that are not randomized by more bits than it knows.
    done = subprocess.run(["setarch", "--addr-no-randomize", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[:5000]
