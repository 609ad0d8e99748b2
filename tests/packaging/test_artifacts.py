"""The sdist holds all that a build needs; `make wheels` builds from it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from wheels.plan import MOST_BYTES

REPOSITORY = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Sdist:
    """The file, and its tree."""

    file: Path
    tree: Path


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Sdist:
    folder = tmp_path_factory.mktemp("dist")
    # maturin is a program of this environment, which need not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, REPOSITORY]
    run(*command, env=os.environ | {"PATH": path}, cwd=folder)
    (file,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", file, "-C", folder, cwd=folder)
    (tree,) = folder.glob("softs_fast-*/")
    return Sdist(file, tree)


def test_it_holds_all_that_a_build_needs(sdist: Sdist) -> None:
    with tarfile.open(sdist.file) as archive:
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
    package = (file for file in (REPOSITORY / "python").rglob("*") if file.suffix not in (".so", ".pyc"))
    sources = [*package, *(REPOSITORY / "csrc").rglob("*"), *REPOSITORY.glob("rust/*/Cargo.toml")]
    sources += REPOSITORY.glob("rust/*/src/**/*.rs")
    expected |= {file.relative_to(REPOSITORY).as_posix() for file in sources if file.is_file()}
    assert expected <= names
    ours = {name for name in names if not name.startswith("vendor/")}
    assert [name for name in ours if name.endswith((".so", ".pyc", ".png"))] == []
    assert sdist.file.stat().st_size < MOST_BYTES


def test_it_holds_the_crates_of_the_lock(sdist: Sdist) -> None:
    locked = tomllib.loads((REPOSITORY / "Cargo.lock").read_text())["package"]
    wanted = {f"{crate['name']}-{crate['version']}" for crate in locked if "source" in crate}
    assert wanted, "no crate comes from a registry"
    assert {folder.name for folder in (sdist.tree / "vendor").iterdir()} == wanted


def test_its_crates_need_no_other_source(sdist: Sdist, tmp_path: Path) -> None:
    # There are no others here.
    environment = os.environ | {"CARGO_HOME": str(tmp_path / "cargo")}
    run(
        "cargo", "metadata", "--offline", "--locked", "--format-version", "1", env=environment, cwd=sdist.tree
    )


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command to its end; fails with all that it said."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
