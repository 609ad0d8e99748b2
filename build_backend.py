"""Build backend of this tree (PEP 517, PEP 660): CMake builds `softs_fast._kernels`, maturin builds the rest.

`python build_backend.py` builds the C++ module alone, into the package, as an editable installation does.

Environment variables:
    SOFTS_CUDA: `0` leaves CUDA out. `pip` compiles it with nvcc from the package index, without CUDA on this machine.
        Unset: it is compiled if nvcc is on PATH.
    SOFTS_WERROR: `1` makes warnings of the C++ compiler errors.
    CXX, CXXFLAGS, CMAKE_BUILD_PARALLEL_LEVEL: as CMake reads them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import get_requires_for_build_sdist, prepare_metadata_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "python" / "softs_fast"
MODULE = "_kernels" + sysconfig.get_config_var("EXT_SUFFIX")

# nvcc and its dependencies, pinned to one release: newer dependencies do not fit.
NVCC = [f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")]

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return the requirements beside `build-system.requires`: Rust or nvcc, if they are taken as packages."""
    nvcc = NVCC if os.environ.get("SOFTS_CUDA") == "pip" else []
    return [*maturin.get_requires_for_build_wheel(config_settings), *nvcc]


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel, with a C++ module that was compiled for it alone."""
    with tempfile.TemporaryDirectory(prefix="softs-kernels-") as folder:
        return build_wheel_in(Path(folder), wheel_directory, config_settings, metadata_directory)


def build_wheel_in(
    folder: Path,
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel; what other interpreters have left in `folder` and does not depend on them is not compiled again."""
    # maturin takes along every _kernels*.so that it finds.
    for stale in PACKAGE.glob("_kernels*.so"):
        stale.unlink()
    build_kernels(folder)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Install in place; what has not changed since the last time is not compiled again."""
    build_kernels(kept_folder())
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Make an sdist that holds the sources of all crates, too: it builds without crates.io."""
    name: str = maturin.build_sdist(sdist_directory, config_settings)
    archive = Path(sdist_directory, name)
    with tempfile.TemporaryDirectory(prefix="softs-sdist-") as folder:
        shutil.unpack_archive(archive, folder)
        (tree,) = Path(folder).iterdir()
        vendor = ["cargo", "vendor", "--locked", "--versioned-dirs", "vendor"]
        config = subprocess.run(vendor, cwd=tree, check=True, stdout=subprocess.PIPE).stdout
        for crate in (tree / "vendor").glob("windows*"):
            empty(crate)
        (tree / ".cargo").mkdir()
        (tree / ".cargo" / "config.toml").write_bytes(config)
        pack(tree, archive)
    return name


def empty(crate: Path) -> None:
    """Leave only the manifest of a vendored crate: the lock file names it, and no build on Linux compiles it."""
    manifest, checksums = (crate / "Cargo.toml").read_bytes(), (crate / ".cargo-checksum.json").read_text()
    shutil.rmtree(crate)
    (crate / "src").mkdir(parents=True)
    (crate / "src" / "lib.rs").touch()
    (crate / "Cargo.toml").write_bytes(manifest)
    (crate / ".cargo-checksum.json").write_text(json.dumps({**json.loads(checksums), "files": {}}))


def build_pure_wheel(wheel_directory: str) -> str:
    """Build a wheel of the Python package alone, for any platform; nothing is compiled.

    pip prefers a wheel for its platform. Where there is none, such as on a Mac, it takes this one: a worker of a
    parameter server needs no native module. The same files make the same bytes. Times are SOURCE_DATE_EPOCH, or 1980.
    """
    with tempfile.TemporaryDirectory(prefix="softs-metadata-") as folder:
        info = Path(folder, prepare_metadata_for_build_wheel(folder))
        tag = "Generator: build_backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\n{tag}")
        (info / "RECORD").unlink(missing_ok=True)
        files = {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes() for path in pure_files()}
        files |= {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(info.rglob("*"))
            if path.is_file()
        }
        rows = [f"{name},sha256={record_digest(data)},{len(data)}\n" for name, data in files.items()]
        files[f"{info.name}/RECORD"] = "".join([*rows, f"{info.name}/RECORD,,\n"]).encode()
        name = f"{info.name.removesuffix('.dist-info')}-py3-none-any.whl"
    # The format has no time before 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as wheel:
        for path, data in files.items():
            member = zipfile.ZipInfo(path, date)
            # As on every system, whichever one packs it: a file of Unix, for all to read.
            member.create_system, member.external_attr = 3, 0o100644 << 16
            wheel.writestr(member, data, zipfile.ZIP_DEFLATED)
    return name


def pure_files() -> list[Path]:
    """Return the files of the package that no build has left there."""
    built = (".so", ".pyd", ".dylib", ".pyc")
    return [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.suffix not in built]


def record_digest(data: bytes) -> str:
    """Return the SHA-256 of a file as the RECORD of a wheel has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def pack(tree: Path, archive: Path) -> None:
    """Write a folder into a .tar.gz; the same files make the same bytes."""
    # That of maturin: SOURCE_DATE_EPOCH, or a constant.
    time = int((tree / "PKG-INFO").stat().st_mtime)

    def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = time
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as members,
    ):
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                members.add(path, path.relative_to(tree.parent), filter=without_owner)


def build_kernels(folder: Path) -> None:
    """Compile the C++ module in `folder`, and put it into the package.

    Raises:
        SystemExit: SOFTS_CUDA is none of its values, or asks for an nvcc that is not there.
        subprocess.CalledProcessError: CMake or a compiler failed; the cause is on standard error.
    """
    options = cmake_options()
    configure = ["cmake", "-S", ROOT / "csrc", "-B", folder, "-G", "Ninja", *options]
    for command in (configure, ["cmake", "--build", folder]):
        # Standard output belongs to the frontend, which may take it for the name of the wheel.
        subprocess.run(command, check=True, stdout=sys.stderr)
    # Renamed into place, so that a process that has loaded the old file keeps it.
    fresh = PACKAGE / f".fresh-{MODULE}"
    shutil.copy(folder / MODULE, fresh)
    fresh.rename(PACKAGE / MODULE)


def cmake_options() -> list[str]:
    """Return CMake's arguments for this interpreter and environment."""
    import pybind11

    options = [
        # What CMake and pybind11 know of the interpreter that last used the folder, which may have been another one.
        "-U*Python*",
        "-U*PYTHON*",
        # All of these may have moved since the folder was last used: each isolated build has its own.
        f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        f"-DSOFTS_WERROR={'ON' if os.environ.get('SOFTS_WERROR') == '1' else 'OFF'}",
    ]
    if nvcc := find_nvcc(os.environ.get("SOFTS_CUDA", "")):
        options += ["-DSOFTS_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
        # The packages have their libraries in lib, where their nvcc does not search.
        libraries = Path(nvcc).resolve().parents[1] / "lib"
        if (libraries / "libcudart_static.a").exists():
            options.append(f'-DCMAKE_CUDA_FLAGS=-L"{libraries}"')
    return options


def find_nvcc(choice: str) -> str | None:
    """Return the CUDA compiler to use; none, where CUDA is left out.

    Args:
        choice: the value of SOFTS_CUDA.

    Raises:
        SystemExit: `choice` is none of its values, or is `pip` and the packages are not there.
    """
    if choice == "0":
        return None
    if choice == "":
        return shutil.which("nvcc")
    if choice != "pip":
        sys.exit(
            f'SOFTS_CUDA is "{choice}"; need 0 (no CUDA), pip (nvcc as a package), or unset (nvcc of PATH)'
        )
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (nvcc := Path(folder, "cu13", "bin", "nvcc")).exists():
            return str(nvcc)
    sys.exit(f"SOFTS_CUDA=pip, but nvcc is not installed; without build isolation install {' '.join(NVCC)}")


def requirements(extra: str) -> list[str]:
    """Return what the package and one of its extras need, other extras included, as lines of a requirements file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, extras = list(project["dependencies"]), [extra]
    for name in extras:
        for line in project["optional-dependencies"][name]:
            own = re.fullmatch(r"softs-fast\[(.*)\]", line)
            if own:
                extras += [other for other in own[1].split(",") if other not in extras]
            else:
                found.append(line)
    return found


def kept_folder() -> Path:
    """Return the build folder of an installation in place: one for each interpreter, choice and compiler."""
    names = ("SOFTS_CUDA", "SOFTS_WERROR", "CXX", "CXXFLAGS")
    nvcc = find_nvcc(os.environ.get("SOFTS_CUDA", ""))
    key = repr([MODULE, nvcc, *(os.environ.get(name, "") for name in names)])
    digest = hashlib.sha256(key.encode()).hexdigest()
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), f"kernels-{digest[:12]}")


if __name__ == "__main__":
    build_kernels(kept_folder())
