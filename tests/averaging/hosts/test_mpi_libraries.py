"""The policies and boards over real MPI libraries, each in an environment of its own: mpiexec starts three ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
# Downloads of some 15 MB the first time.
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

slow = pytest.mark.slow
LIBRARIES = ["mpich", pytest.param("openmpi", marks=slow)]
# By which the launcher does not end the other ranks when one dies. That of MPICH sends them SIGUSR1, and ends them all
# the same if it is told of the end of the process before the end of its socket: a shell is between them.
SURVIVE = {"mpich": ["-disable-auto-cleanup"], "openmpi": ["--enable-recovery"]}
SHELL = ["sh", "-c", 'trap "" USR1; "$@"; exit 0', "sh"]
# Three ranks on any number of cores, as any user.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
HERE, OTHER = 0, 1


def environment_of(library: str) -> Path:
    """The environment of a library, with mpi4py; torch and numpy are those of this Python. Kept beside what is built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    folder = target / f"mpi-{library}-{sys.version_info[0]}.{sys.version_info[1]}"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "mpi4py", library]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lost = re.search(r"connection broken by '(.*)': (\S+)", done.stderr)
            if lost:
                pytest.skip(f"the package index cannot be reached for {library} ({lost[2]}): {lost[1][:200]}")
            raise AssertionError(done.stderr)
        (folder / "complete").touch()
    packages = subprocess.run(
        [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(packages, "packages_of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


def run(
    library: str, folder: Path, scenario: str, options: list[str], *, dead: set[int], **arguments: Any
) -> dict[int, Any]:
    """Run a scenario of mpi_ranks.py by three ranks; return what each has seen that is not dead in the end."""
    environment = environment_of(library)
    paths = [
        Path(__file__).parent,
        Path(__file__).parent.parent,
        REPOSITORY / "tests",
        REPOSITORY / "tests" / "peers",
        REPOSITORY / "python",
    ]
    python_path = os.pathsep.join(map(str, [*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))
    program = [environment / "bin" / "python", Path(__file__).with_name("mpi_ranks.py"), folder, scenario]
    if dead:
        program = [*SHELL, *program]
    running = subprocess.Popen(
        [environment / "bin" / "mpiexec", *options, "-n", "3", *program, json.dumps(arguments)],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = running.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        # A launcher that is killed would leave the ranks.
        running.terminate()
        said, _ = running.communicate()
    told = {rank: folder / f"{rank}.json" for rank in range(3)}
    missing = {rank for rank, file in told.items() if not file.exists()}
    assert missing == dead, said
    assert dead or running.returncode == 0, said
    return {rank: json.loads(told[rank].read_text()) for rank in range(3) if rank not in dead}


@pytest.mark.parametrize(
    "hosts", [[HERE, OTHER, OTHER], pytest.param([HERE] * 3, marks=slow)], ids=["two_hosts", "one_host"]
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_policies_over_a_real_library(library: str, hosts: list[int], tmp_path: Path) -> None:
    told = run(library, tmp_path, "policies", [], dead=set(), hosts=hosts)
    for rank, one in told.items():
        infos = [{"averaged_this_iteration": True}, {"averaged_this_iteration": False}]
        assert one["all"] == {"value": 2.33333, "infos": infos}
        for name in ("fast", "general"):
            seen = one[name]
            assert seen["counts"][1:] == [rank, 3]
            if rank:
                assert (seen["value"], seen["n_built"], seen["first"]) == (float(rank), 0, None)
                continue
            # Of the two others, half of the ranks donate.
            assert seen["value"] in (1.0, 2.0)
            assert seen["n_built"] == seen["counts"][0] >= 1
            assert seen["first"]["averaged_this_iteration"]
            assert seen["first"]["replacement_mode"] == "worst_ratio"
            assert seen["first"]["num_replacements_so_far"] == 1
            assert seen["first"]["local_metric"] == 0.1
            assert seen["stats"]["donors"] == [1] * seen["n_built"]
            assert seen["stats"]["num_param_tensors_received"] == [13] * seen["n_built"]


@slow
@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_no_version_that_comes_by_messages_is_torn(library: str, tmp_path: Path) -> None:
    told = run(library, tmp_path, "stress", [], dead=set(), n_reads=1000, n=100_000)
    assert told[0]["n_read"] + told[0]["n_refused"] == 1000
    assert told[0]["n_read"] >= 900, "donors that publish without end have a whole version nearly always"
    # They went on meanwhile: what is whole was not whole by luck.
    assert all(told[rank]["published"] > 1000 for rank in (1, 2))


@slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_a_rank_that_is_lost_is_given_up_and_another_one_is_read(
    library: str, how: str, tmp_path: Path
) -> None:
    told = run(library, tmp_path, "lost", SURVIVE[library], dead={1, 2}, how=how)
    assert told[0] == {"alive": [2], "refused": True, "threads": []}
