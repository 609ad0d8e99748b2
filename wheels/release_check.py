"""`python -m wheels.release_check [FOLDER]`: what a user does first, with the wheel of this Python in FOLDER (default: dist).

The wheel is installed in an empty environment, and no compiler is on PATH. Programs of the pages run with the torch of the
environment that runs this. Prints a row for each step; the first one that fails ends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wheels import smoke

REPOSITORY = Path(__file__).resolve().parents[1]
_JOB = "softs-fast run --factory teacher:make_supplier --workers 2 -- python plain.py"
#: Each step with its command, and the page with what it prints, if that is always the same.
STEPS = {
    "doctor": ("softs-fast doctor", None),
    "quickstart": ("python quickstart.py", "README.md"),
    "drop-in": ("python -m softs_fast.dropin dropin.py", "README.md"),
    "flow": ("python ranks.py", "docs/guide.md"),
    "job": (_JOB, "docs/job.md"),
    "coordinator": (_JOB, "docs/job.md"),
    "parameters": ("python examples/paramserver_digits.py", None),
}


def main(arguments: Sequence[str]) -> int:
    """Install the wheel, run the steps, and report; returns the exit status."""
    wheel = wheel_of_this_python(Path(arguments[0] if arguments else REPOSITORY / "dist"))
    with tempfile.TemporaryDirectory(prefix="softs-") as name:
        folder = Path(name)
        began = time.monotonic()
        programs = smoke.install(Path(sys.executable), wheel, folder)
        report("install", wheel.name, began)
        write_programs(folder)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment |= {
            "PATH": str(programs),
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "OMP_NUM_THREADS": "1",
        }
        where = "import softs_fast; print(softs_fast.__file__)"
        used = smoke.run(programs / "python", "-c", where, env=environment, cwd=folder)
        if not used.startswith(str(folder)):
            raise SystemExit(f"the programs would use {used.strip()}, expected the wheel in {folder}")
        for step, (command, page) in STEPS.items():
            began = time.monotonic()
            program, *words = command.split()
            with (
                coordinator(programs, environment)
                if step == "coordinator"
                else contextlib.nullcontext(environment)
            ) as given:
                said = smoke.run(programs / program, *words, env=given, cwd=folder)
            if page is not None and f"```text\n{said}```" not in (REPOSITORY / page).read_text():
                raise SystemExit(f"{command} printed what {page} does not show:\n{said}")
            report(step, command, began)
    return 0


def wheel_of_this_python(folder: Path) -> Path:
    """Return the wheel in a folder that is for the running Python.

    Raises:
        SystemExit: none is there, or several are.
    """
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = sorted(folder.glob(f"softs_fast-*-{tag}-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{folder} has {len(found)} wheels for {tag}, expected 1; run make wheels first")
    return found[0].resolve()


@contextlib.contextmanager
def coordinator(programs: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a coordinator of the job, and yield the environment with its address."""
    command = [programs / "softs-fast", "coordinator", "run", "--job", "digits", "--world-size", "1"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("coordinator ").strip()
            yield {**environment, "SOFTS_FAST_COORDINATOR": address}
        finally:
            process.kill()


def write_programs(folder: Path) -> None:
    """Write the programs of the pages, and the examples; the drop-in gets that of the README, as one that imports softs."""
    (quickstart,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    programs = dict(
        re.findall(
            r"```python title=(\S+)\n(.*?)```", (REPOSITORY / "docs" / "job.md").read_text(), re.DOTALL
        )
    )
    guide = (REPOSITORY / "docs" / "guide.md").read_text()
    (programs["ranks.py"],) = re.findall(
        r"```python\n(# ranks.py\n(?:(?!```).)*df\.Flow.*?)```", guide, re.DOTALL
    )
    programs["quickstart.py"] = quickstart
    programs["dropin.py"] = quickstart.replace("import softs_fast as sf", "import softs as sf")
    for name, program in programs.items():
        (folder / name).write_text(program)
    shutil.copytree(REPOSITORY / "examples", folder / "examples")


def report(step: str, what: str, began: float) -> None:
    """Print the row of a step that has passed."""
    print(f"{step:12}{time.monotonic() - began:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
