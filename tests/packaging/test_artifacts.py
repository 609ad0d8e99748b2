"""What users install: the sdist, the wheel built from it, and that wheel in an environment without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from wheels.plan import MOST_BYTES
from wheels.release_check import STEPS

REPOSITORY = Path(__file__).parents[2]
MODULE = "_kernels" + sysconfig.get_config_var("EXT_SUFFIX")
# The first test to run builds: the native module, optimised, on whatever machine this is.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

# Between CMake and the C++ compiler: also copies each object file into a folder.
KEEP_OBJECTS = """#!/bin/sh
"$@" || exit
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then
        mkdir -p "$KEPT_OBJECTS/$(dirname "$2")"
        cp "$2" "$KEPT_OBJECTS/$2"
    fi
    shift
done
"""


@dataclass(frozen=True)
class Artifacts:
    """The two files of a release; the tree of the first one, from which the second one was built; the objects of the C++ module."""

    sdist: Path
    wheel: Path
    tree: Path
    objects: Path


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """An sdist, and a wheel that was built from it in an isolated environment, without CUDA."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, REPOSITORY)
    (sdist,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", sdist, "-C", folder)
    (tree,) = folder.glob("softs_fast-*/")
    for stale in (MODULE, "_kernels.cpython-399-x86_64-linux-gnu.so"):
        (tree / "python" / "softs_fast" / stale).write_text("of another build")

    programs = folder / "bin"
    programs.mkdir()
    # A CUDA compiler that can only fail: it is not asked.
    for name, text in (("nvcc", "#!/bin/sh\nexit 1\n"), ("keep", KEEP_OBJECTS)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = os.environ | {
        # Crates come from the sdist: there are no others here.
        "CARGO_HOME": str(folder / "cargo"),
        "CARGO_NET_OFFLINE": "true",
        # All crates without optimisation compile in less time than ours with it.
        "CARGO_PROFILE_RELEASE_DEBUG": "false",
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
        "CARGO_TARGET_DIR": str(folder / "target"),
        "CMAKE_CXX_COMPILER_LAUNCHER": str(programs / "keep"),
        "KEPT_OBJECTS": str(folder / "objects"),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "SOFTS_CUDA": "0",
    }
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, tree, env=environment)
    (wheel,) = folder.glob("*.whl")
    return Artifacts(sdist, wheel, tree, folder / "objects")


def test_sdist_holds_all_that_a_build_needs(artifacts: Artifacts) -> None:
    with tarfile.open(artifacts.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        "pyproject.toml",
        "build_backend.py",
        "Cargo.toml",
        "Cargo.lock",
        "LICENSE",
        "THIRD-PARTY-LICENSES",
        "README.md",
        "PKG-INFO",
    }
    for crate in ("proto", "shm", "net", "py"):
        expected |= {f"rust/{crate}/Cargo.toml", f"rust/{crate}/src/lib.rs"}
    assert expected <= names
    assert python_files() <= names
    sources = (file for file in (REPOSITORY / "csrc").rglob("*") if file.is_file())
    assert {file.relative_to(REPOSITORY).as_posix() for file in sources} <= names
    ours = {name for name in names if not name.startswith("vendor/")}
    assert [name for name in ours if name.endswith((".so", ".pyc", ".png"))] == []


def test_sdist_holds_the_crates_of_the_lock(artifacts: Artifacts) -> None:
    locked = tomllib.loads((REPOSITORY / "Cargo.lock").read_text())["package"]
    wanted = {f"{crate['name']}-{crate['version']}" for crate in locked if "source" in crate}
    assert wanted, "no crate comes from a registry"
    vendored = artifacts.tree / "vendor"
    assert {folder.name for folder in vendored.iterdir()} == wanted
    assert artifacts.sdist.stat().st_size < MOST_BYTES


def test_wheel_holds_the_package_and_its_types(artifacts: Artifacts) -> None:
    with zipfile.ZipFile(artifacts.wheel) as archive:
        names = set(archive.namelist())
    assert {name.removeprefix("python/") for name in python_files()} <= names
    assert {"softs_fast/py.typed", "softs_fast/_core.pyi", "softs_fast/_dropin/softs/__init__.py"} <= names
    native = sorted(name for name in names if name.endswith(".so"))
    assert [name.split(".")[0] for name in native] == ["softs_fast/_core", "softs_fast/_kernels"]
    (tag,) = {name.split(".", 1)[1] for name in native}
    assert tag == sysconfig.get_config_var("EXT_SUFFIX").removeprefix(".")
    metadata = {name.partition(".dist-info/")[2] for name in names}
    assert metadata >= {"licenses/LICENSE", "licenses/THIRD-PARTY-LICENSES", "sboms/softs-py.cyclonedx.json"}
    # Nothing beside the package and its metadata lands in site-packages.
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"softs_fast"}


def test_wheel_gets_a_library_of_its_own_and_none_with_cuda_left_out(artifacts: Artifacts) -> None:
    package = artifacts.tree / "python" / "softs_fast"
    assert [file.name for file in package.glob("_kernels*.so")] == [MODULE]
    program = "import _kernels; print(_kernels.build_info()['available'][-1], _kernels.cuda_build())"
    environment = os.environ | {"PYTHONPATH": str(package)}
    assert run(sys.executable, "-c", program, env=environment) == "scalar None\n"


def test_objects_of_instruction_sets_stay_apart(artifacts: Artifacts) -> None:
    """What is compiled for one instruction set defines its entry and nothing that the linker might use for others too."""
    files = [*artifacts.objects.rglob("cpu/x86/*.o"), *artifacts.objects.rglob("cpu/arm/*.o")]
    assert files or os.uname().machine not in ("x86_64", "aarch64")
    for file in files:
        command = ["nm", "--demangle", "--defined-only", "--extern-only", file]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        defined = {line.split(maxsplit=2)[2] for line in lines} - {"DW.ref.__gxx_personality_v0"}
        assert defined == {f"softs::{file.name.partition('.')[0]}(softs::ReduceArgs const&)"}


def test_wheel_states_its_requirements(artifacts: Artifacts) -> None:
    with zipfile.ZipFile(artifacts.wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    always = [
        line for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE) if "extra ==" not in line
    ]
    assert sorted(re.split(r"[^a-z]", line.lower())[0] for line in always) == [
        "msgpack",
        "msgspec",
        "numpy",
        "pyyaml",
    ]
    assert "Requires-Python: >=3.11" in text
    (version,) = re.findall(r"^Version: (.*)$", text, re.MULTILINE)
    assert f'version = "{version}"' in (REPOSITORY / "Cargo.toml").read_text()


def test_wheel_works_without_torch(artifacts: Artifacts, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", artifacts.wheel)
    # -I: neither PYTHONPATH nor the current folder may lend it this repository's package.
    script = REPOSITORY / "wheels" / "round_trip.py"
    assert run(python, "-I", "-W", "error", script, tmp_path) == "sample arrived without torch\n"


def test_what_a_user_does_first_works_without_a_compiler(artifacts: Artifacts) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wheels.release_check", artifacts.wheel.parent],
        capture_output=True, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = [line.split()[0] for line in done.stdout.splitlines()]
    assert steps == ["install", *STEPS]


def python_files() -> set[str]:
    """The package's files as the repository holds them, less what a build left there."""
    files = (REPOSITORY / "python").rglob("*")
    kept = [file for file in files if file.is_file() and file.suffix not in (".so", ".pyc")]
    return {file.relative_to(REPOSITORY).as_posix() for file in kept}


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; returns what it printed, fails with all that it said."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/")
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
