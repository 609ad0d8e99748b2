"""What takes minutes to check about the files of a release: the same bytes twice, the same device code with each compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from wheels import plan

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = REPOSITORY / ".venv-wheels"
CUDA = REPOSITORY / "csrc" / "cuda"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600)]


def test_a_commit_makes_the_same_files_from_any_clone(tmp_path: Path) -> None:
    """`make wheels` also checks and uses each file, and fails if one is not fit."""
    made = []
    for clone in (tmp_path / "a", tmp_path / "in another folder" / "b"):
        run("git", "clone", "--quiet", REPOSITORY, clone)
        run("make", "-C", clone, "wheels")
        made.append({file.name: file.read_bytes() for file in (clone / "dist").iterdir()})
    assert len([name for name in made[0] if name.endswith(".whl")]) == len(made[0]) - 1 > 1
    assert len([name for name in made[0] if plan.is_pure(name)]) == 1
    assert made[0].keys() == made[1].keys()
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []


@pytest.fixture(scope="module")
def tools() -> plan.Tools:
    run("make", "-C", REPOSITORY, ".venv-wheels/.installed")
    (packages,) = ENVIRONMENT.glob("lib/python3.*/site-packages")
    return plan.Tools(ENVIRONMENT / "bin", packages)


@pytest.mark.parametrize("source", sorted(CUDA.glob("*.cu")), ids=lambda source: source.name)
def test_device_code_is_the_same_with_gcc(tools: plan.Tools, source: Path, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    zig = tmp_path / "zig-c++"
    zig.write_text(plan.compiler_script(tools))
    zig.chmod(0o755)
    code = []
    for compiler, flags in (
        ("g++", ()),
        (zig, (*plan.NVCC_FLAGS, f"-I{REPOSITORY / 'wheels' / 'headers'}")),
    ):
        cubin = tmp_path / f"{Path(compiler).name}.cubin"
        nvcc = tools.packages / "nvidia" / "cu13" / "bin" / "nvcc"
        command = [nvcc, "-ccbin", compiler, *flags, "-std=c++17", "-O3", "-arch=sm_90", f"-I{CUDA.parent}"]
        run(*command, "--cubin", source, "-o", cubin)
        # Names of kernels in unnamed namespaces have a hash of the text before them, which is that of other headers.
        code.append(re.sub(rb"(_cu_)[0-9a-f]{8}", rb"\1", cubin.read_bytes()))
    assert code[0] == code[1]


def run(*command: str | Path) -> None:
    """Run a command to its end; fails with all that it said."""
    # make takes variables of another make for its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
