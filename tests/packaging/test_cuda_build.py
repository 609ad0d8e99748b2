"""The CUDA side compiles with nvcc as a package, and the module that holds it imports where there is no driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# A download of some 100 MB the first time, and the compilers' time.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PROBE = """
import json
import _kernels
version, architectures = _kernels.cuda_build()
print(json.dumps([version, architectures.split(), _kernels.cuda_devices()]))
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


def test_cuda_side_compiles_and_imports_without_a_driver(nvcc_packages: Path, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
    shutil.copy(REPOSITORY / "build_backend.py", tmp_path)
    package = tmp_path / "python" / "softs_fast"
    package.mkdir(parents=True)
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(tmp_path / "target"),
        # The module is not run: without optimisation it compiles in half of the time.
        "CMAKE_BUILD_TYPE": "Debug",
        # Each architecture takes as long as the rest together; `make wheels` compiles for all, and checks that.
        "CUDAARCHS": "90",
        "NVCC_APPEND_FLAGS": "-Xcicc -O1 -Xptxas -O1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(nvcc_packages),
        "SOFTS_CUDA": "pip",
        "SOFTS_WERROR": "1",
    }
    build = subprocess.run(
        [sys.executable, "build_backend.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    environment["PYTHONPATH"] = str(package)
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    version, architectures, devices = json.loads(probe.stdout)
    assert version // 1000 == 13
    assert architectures == ["90"]
    assert isinstance(devices, int)
    # Neither the runtime nor the driver is asked for by name: without them the import would fail elsewhere.
    (module,) = package.glob("_kernels*.so")
    needed = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed
    assert "cuda" not in needed
