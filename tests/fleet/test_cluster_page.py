"""The scripts of docs/clusters.md under the engines that start them, on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import slurm
import yaml
from waiting import free_ports

from softs_fast.cli import parser

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clusters.md").read_text()
SCRIPTS = dict(re.findall(r"```sh title=(\S+)\n(.*?)```", PAGE, flags=re.DOTALL))
PRINTED = ["(32, 784) 0\n", "(32, 784) 32\n", "(32, 784) 64\n"]


@pytest.fixture
def page(short_path: Path) -> dict[str, str]:
    """A folder with the programs of docs/hosts.md and the page's scripts, where `$(hostname)` and the others are this host."""
    pytest.importorskip("cryptography", reason="makes certificates")
    for name, program in re.findall(
        r"```python title=(\S+)\n(.*?)```", (DOCS / "hosts.md").read_text(), flags=re.DOTALL
    ):
        (short_path / name).write_text(program)
    here = f"127.0.0.1:{free_ports()[0]}"
    for name, script in SCRIPTS.items():
        own = re.sub(r"\$\(hostname\)|0\.0\.0\.0", here, script)
        own = re.sub(r"--host \S+", "--host localhost:2 -np 2 --oversubscribe --allow-run-as-root", own)
        own = own.replace("--connect student0 --connect student1", f"--connect {here}")
        own = own.replace("--nnodes 2", "--standalone").replace(
            "--rdzv-endpoint student0:29400 --rdzv-backend c10d ", ""
        )
        (short_path / name).write_text(own)
    (short_path / "softs-fast").write_text(f'#!/bin/sh\nexec {sys.executable} -m softs_fast "$@"\n')
    (short_path / "softs-fast").chmod(0o700)
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(short_path), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(short_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.full
@pytest.mark.timeout(300)
def test_slurm(page: dict[str, str], short_path: Path) -> None:
    with slurm.cluster(short_path, 3) as variables:
        subprocess.run(
            ["sbatch", "--wait", "-o", "out", "slurm.sh"],
            cwd=short_path,
            env={**page, **variables},
            check=True,
        )
    out = (short_path / "out").read_text()
    assert [line for line in out.splitlines(keepends=True) if line in PRINTED] == PRINTED, out
    assert out.count("connects to") == 2
    assert not [*short_path.glob("*.token")]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_mpirun(page: dict[str, str], short_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI: there is no mpirun")
    done = subprocess.run(
        ["bash", "mpi.sh"], cwd=short_path, env=page, stdout=subprocess.PIPE, text=True, check=True
    )
    assert [line for line in done.stdout.splitlines(keepends=True) if line in PRINTED] == PRINTED, done.stdout
    assert done.stdout.count("connects to") == 2


@pytest.mark.full
@pytest.mark.timeout(300)
def test_torchrun(page: dict[str, str], short_path: Path) -> None:
    subprocess.run(["softs-fast", "keys", "new", "job.token"], cwd=short_path, env=page, check=True)
    with ExitStack() as stack:
        teachers = subprocess.Popen(
            ["sh", "teachers_of_ranks.sh"], cwd=short_path, env=page, start_new_session=True
        )
        stack.callback(teachers.wait)
        stack.callback(os.killpg, teachers.pid, 15)
        done = subprocess.run(
            ["sh", "ranks.sh"], cwd=short_path, env=page, stdout=subprocess.PIPE, text=True, check=True
        )
    # Both ranks are alone, as the program makes no group of them.
    assert sorted(line for line in done.stdout.splitlines(keepends=True) if line in PRINTED) == sorted(
        2 * PRINTED
    )


def test_commands_of_containers_are_commands() -> None:
    (manifests,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    pods = [
        one["spec"]["template"]["spec"] for one in yaml.safe_load_all(manifests) if "template" in one["spec"]
    ]
    commands = [container["command"] for pod in pods for container in pod["containers"]]
    assert len(commands) == 2
    for program, *arguments in commands:
        assert program == "softs-fast"
        parser().parse_args(arguments)
