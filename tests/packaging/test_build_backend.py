"""The C++ half of the build: which CUDA compiler it takes, and what it has compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from build_backend import kept_folder

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the build reads, in a folder of its own."""
    shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
    for file in ("build_backend.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / file, tmp_path)
    return tmp_path


def in_tree(tree: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # cmake and ninja are programs of this environment; it need not be activated.
    path = os.pathsep.join([str(tree), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = os.environ | {"PATH": path} | environment
    return subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env=variables, capture_output=True, text=True, check=False
    )


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


def test_an_archive_of_the_same_files_has_the_same_bytes(tree: Path) -> None:
    """Owners, permissions of others, times, and the order in which files were made do not count."""
    program = "import build_backend, pathlib, sys; build_backend.pack(*map(pathlib.Path, sys.argv[1:]))"
    archives = []
    files = ["PKG-INFO", "a", "b/c", *(f"d{n:02}" for n in range(50))]
    for number, names in enumerate((files, files[::-1])):
        folder = tree / str(number) / "softs_fast-1"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
            (folder / name).chmod((0o600, 0o664)[number])
            os.utime(folder / name, (number, number))
        (folder / "a").chmod(0o755)
        os.utime(folder / "PKG-INFO", (7, 7))
        archive = tree / f"{number}.tar.gz"
        done = in_tree(tree, f"import sys; sys.argv[1:] = {[str(folder), str(archive)]!r}; {program}")
        assert done.returncode == 0, done.stderr
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(tree / "0.tar.gz") as members:
        found = [(member.name, member.mode, member.mtime) for member in members]
    assert found == [
        ("softs_fast-1/PKG-INFO", 0o644, 7),
        ("softs_fast-1/a", 0o755, 7),
        *((f"softs_fast-1/{name}", 0o644, 7) for name in files[2:]),
    ]


def test_a_wheel_takes_along_no_module_of_another_build(tree: Path) -> None:
    package = tree / "python" / "softs_fast"
    package.mkdir(parents=True)
    (package / "_kernels.cpython-399-x86_64-linux-gnu.so").write_text("of another build")
    program = """
import build_backend, maturin, pathlib
build_backend.build_kernels = lambda folder: (build_backend.PACKAGE / build_backend.MODULE).touch()
maturin.build_wheel = lambda *given: print([file.name for file in build_backend.PACKAGE.iterdir()] == [build_backend.MODULE])
build_backend.build_wheel_in(pathlib.Path("kernels"), "dist")
"""
    done = in_tree(tree, program)
    assert done.stdout == "True\n", done.stderr


def test_objects_of_instruction_sets_stay_apart() -> None:
    """What is compiled for one instruction set defines its entry and nothing that the linker might use for others too."""
    if not (built := kept_folder()).exists():
        pytest.skip(f"nothing was built in {built}")
    files = [*built.rglob("cpu/x86/*.o"), *built.rglob("cpu/arm/*.o")]
    assert files or os.uname().machine not in ("x86_64", "aarch64")
    for file in files:
        command = ["nm", "--demangle", "--defined-only", "--extern-only", file]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        defined = {line.split(maxsplit=2)[2] for line in lines} - {"DW.ref.__gxx_personality_v0"}
        assert defined == {f"softs::{file.name.partition('.')[0]}(softs::ReduceArgs const&)"}
