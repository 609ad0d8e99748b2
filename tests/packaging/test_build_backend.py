"""The C++ half of the build: what it compiles, what it leaves out, and that it ships nothing of another build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MODULE = "_kernels" + sysconfig.get_config_var("EXT_SUFFIX")
# Compiles the C++ module, without what earlier builds left.
pytestmark = pytest.mark.timeout(600)

# maturin's half is left out, and the objects are kept.
BUILD = """
import contextlib
import tempfile
import maturin
maturin.build_wheel = lambda *_: "a.whl"
tempfile.TemporaryDirectory = lambda prefix: contextlib.nullcontext("objects")
import build_backend
assert build_backend.build_wheel("dist") == "a.whl"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the build reads, in a folder of its own."""
    shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
    for file in ("build_backend.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / file, tmp_path)
    (tmp_path / "python" / "softs_fast").mkdir(parents=True)
    return tmp_path


def in_tree(tree: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # cmake and ninja are programs of this environment; it need not be activated.
    path = os.pathsep.join([str(tree), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PATH": path} | environment
    return subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env=variables, capture_output=True, text=True, check=False
    )


def test_wheel_gets_a_library_of_its_own_and_none_with_cuda_left_out(tree: Path) -> None:
    package = tree / "python" / "softs_fast"
    for stale in (MODULE, "_kernels.cpython-399-x86_64-linux-gnu.so"):
        (package / stale).write_text("of another build")
    # A compiler that can only fail: it is not asked.
    nvcc = tree / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    done = in_tree(tree, BUILD, SOFTS_CUDA="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [file.name for file in package.iterdir()] == [MODULE]
    program = "import _kernels; print(_kernels.build_info()['available'][-1], _kernels.cuda_build())"
    done = in_tree(tree, program, PYTHONPATH=str(package))
    assert done.stdout == "scalar None\n", done.stderr
    check_that_instruction_sets_stay_apart(tree / "objects")


def check_that_instruction_sets_stay_apart(objects: Path) -> None:
    """What is compiled for one instruction set defines its entry and nothing that the linker might use for others too."""
    files = [*objects.rglob("cpu/x86/*.o"), *objects.rglob("cpu/arm/*.o")]
    assert files or os.uname().machine not in ("x86_64", "aarch64")
    for file in files:
        command = ["nm", "--demangle", "--defined-only", "--extern-only", file]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        defined = {line.split(maxsplit=2)[2] for line in lines} - {"DW.ref.__gxx_personality_v0"}
        assert defined == {f"softs::{file.name.partition('.')[0]}(softs::ReduceArgs const&)"}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("yes", 'SOFTS_CUDA is "yes"; need 0 (no CUDA), pip (nvcc as a package), or unset (nvcc of PATH)'),
        (
            "pip",
            "SOFTS_CUDA=pip, but nvcc is not installed; without build isolation install nvidia-cuda-nvcc==13.0.*",
        ),
    ],
)
def test_unknown_choice_or_absent_nvcc_is_refused_before_anything_is_built(
    tree: Path, choice: str, message: str
) -> None:
    program = "import build_backend, sys, importlib.util; importlib.util.find_spec = lambda _: None; build_backend.cmake_options()"
    done = in_tree(tree, program, SOFTS_CUDA=choice)
    assert done.returncode == 1
    assert message in done.stderr


def test_nvcc_of_the_path_is_used_unless_told_otherwise(tree: Path) -> None:
    nvcc = tree / "nvcc"
    nvcc.touch(mode=0o755)
    program = "import build_backend; print(build_backend.cmake_options())"
    environment = {"SOFTS_CUDA": ""}
    assert f"-DCMAKE_CUDA_COMPILER={nvcc}" in in_tree(tree, program, **environment).stdout
    assert "CUDA" not in in_tree(tree, program, SOFTS_CUDA="0").stdout


def test_nvcc_as_a_package_is_required_only_if_asked_for(tree: Path) -> None:
    program = "import build_backend; print(*build_backend.get_requires_for_build_wheel(), sep=chr(10))"
    with_nvcc = in_tree(tree, program, SOFTS_CUDA="pip").stdout.split()
    without = in_tree(tree, program, SOFTS_CUDA="").stdout.split()
    assert {
        f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")
    } == {*with_nvcc} - {*without}
