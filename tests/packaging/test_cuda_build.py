"""The CUDA side compiles with nvcc as a package, and what holds it starts where there is no driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# A download of some 100 MB the first time, and the compilers' time.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PROGRAM = """
#include <cstdio>
#include "cpu/reduce.hpp"
#include "cuda/device.hpp"
// That of the core, which is not linked.
std::size_t softs::item_bytes(softs::Dtype) noexcept { return 0; }
int main() { std::printf("%d %d\\n", *softs::cuda::runtime_version() / 1000, softs::cuda::n_devices()); }
"""


@pytest.fixture(scope="module")
def nvcc_packages() -> Path:
    """Where the packages of nvcc are; kept beside what else is built."""
    sys.path.insert(0, str(REPOSITORY))
    try:
        from build_backend import NVCC
    finally:
        sys.path.remove(str(REPOSITORY))
    folder = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"), "nvcc")
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *NVCC]
        subprocess.run(command, check=True)
        (folder / "complete").touch()
    return folder


def test_cuda_side_compiles_and_runs_without_a_driver(nvcc_packages: Path, tmp_path: Path) -> None:
    """All of it that nvcc sees; the module itself is linked, and used where there is no driver, by `make wheels`."""
    environment = os.environ | {
        # Each architecture takes as long as the rest together; `make wheels` compiles for all, and checks that.
        "CUDAARCHS": "90",
        # It is not run on a device: without optimisation it compiles in half of the time.
        "NVCC_APPEND_FLAGS": "-Xcicc -O1 -Xptxas -O1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(nvcc_packages), str(REPOSITORY)]),
        "SOFTS_CUDA": "pip",
        "SOFTS_WERROR": "1",
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    options = run(
        sys.executable, "-c", "import build_backend; print(*build_backend.cmake_options(), sep='\\n')"
    )
    run(
        "cmake",
        "-S",
        REPOSITORY / "csrc",
        "-B",
        "build",
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Debug",
        *options.splitlines(),
    )
    run("cmake", "--build", "build", "--target", "softs_cuda")
    (tmp_path / "program.cpp").write_text(PROGRAM)
    (libraries,) = (file.parent for file in nvcc_packages.rglob("libcudart_static.a"))
    linked = ["build/libsofts_cuda.a", f"-L{libraries}", "-lcudart_static", "-ldl", "-lpthread", "-lrt"]
    run("c++", "-std=c++20", f"-I{REPOSITORY / 'csrc'}", "program.cpp", "-o", "program", *linked)
    version, n_devices = run("./program").split()
    assert version == "13"
    assert n_devices.lstrip("-").isdigit()
    # Neither the runtime nor the driver is asked for by name: without them the import would fail elsewhere.
    needed = run("readelf", "-d", "program")
    assert "NEEDED" in needed
    assert "cuda" not in needed
