"""The whole of `softs-fast gpu`; on the stand-in, too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softs_fast.gpu.plan import STEPS
from softs_fast.tensors import cuda

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "softs_fast", "gpu", "--quick"]
#: What other tests of this folder run on the stand-in; on a GPU all steps run.
ELSEWHERE = {"memory", "pack", "reduce", "all-reduce-2", "all-reduce-4", "deaths", "in-kernel"}


@pytest.mark.timeout(300)
def test_all_steps_pass(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    steps = [step for step in STEPS if not (cuda.is_standin and step.name in ELSEWHERE)]
    only = ",".join(step.name for step in steps)
    command = [*COMMAND, "--output", path, "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    result = json.loads(path.read_text())
    states = {step["name"]: step["state"] for step in result["steps"]}
    skipped = {step.name for step in steps if step.needs_gpu and cuda.is_standin}
    assert states == {step.name: "skipped" if step.name in skipped else "passed" for step in steps}
    for step in result["steps"]:
        assert step["reason" if step["state"] == "skipped" else "result"], step
        assert f"\n{step['name']} " in done.stdout, "a line of the table"
        assert f"  {step['name']} " in done.stdout, "a line of progress"
    (facts,) = (step["result"]["answers"] for step in result["steps"] if step["name"] == "facts")
    # A record that comes after one of a killed process never completes: on the stand-in because it does not on a GPU.
    assert {name for name, answer in facts.items() if answer["ended"]} == {"event of a killed owner"}, facts


def test_a_run_that_is_cut_off_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    environment = os.environ | {"COLUMNS": "80"}
    with subprocess.Popen(
        [*COMMAND, "--output", path, "--only", "reduce,all-reduce-4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        title, first = process.stdout.readline(), process.stdout.readline()
        assert "torch" in title
        assert first.startswith(" 1/2  reduce            passed")
        begun = " 2/2  all-reduce-4      "
        assert process.stdout.read(len(begun)) == begun
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(45) == 130
        # Nothing of it is left that could hold the pipe open.
        process.stdout.read()
    states = [step["state"] for step in json.loads(path.read_text())["steps"]]
    assert states == ["passed", "not run"]


def test_a_device_that_fails_is_told(tmp_path: Path) -> None:
    if not cuda.is_standin:
        pytest.skip("sets what the stand-in can do")
    environment = os.environ | {"SOFTS_STANDIN_NO_IPC": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [*COMMAND, "--output", tmp_path, "--only", "memory,reduce"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 1
    (path,) = tmp_path.iterdir()
    assert path.name == "gpu-stand-in-0.json"
    memory, reduce = json.loads(path.read_text())["steps"]
    assert (memory["state"], reduce["state"]) == ("failed", "passed")
    assert "cudaIpcOpenMemHandle" in memory["reason"]
    assert memory["reason"] in done.stdout
    assert "Traceback" in memory["output"]


def test_make_gpu_builds_nothing_where_there_is_a_build(tmp_path: Path) -> None:
    """Nor does it need a compiler, cargo, pip or an index."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "find"):
        tool = shutil.which(name)
        assert tool is not None
        (tools / name).symlink_to(tool)
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make here")
    # `make test` passes its own settings on in these.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    paths = [str(REPOSITORY / "python"), environment.get("PYTHONPATH", "")]
    environment |= {"PATH": str(tools), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [make, "gpu", f"PYTHON={sys.executable}", f"ARGS=--quick --only reduce --output {tmp_path}/a.json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{sys.executable} has softs_fast with CUDA: nothing is built\n")
    assert json.loads((tmp_path / "a.json").read_text())["steps"][0]["state"] == "passed"
