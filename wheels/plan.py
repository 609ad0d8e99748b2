"""How a wheel is built and what it must be: pure decisions, without effects.

zig, a package, is the compiler and linker of both native modules: it links against the symbols of glibc 2.28 whatever
the machine has, and brings a C++ library that is linked statically. It is nvcc's host compiler, too. NVIDIA does not
support libc++ there, so two switches and a header (`headers`) keep it away from what nvcc cannot read. All of that is
code for the host: the machine code for devices is the same as with gcc, which a test compares.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PLATFORM = "manylinux_2_28_x86_64"
GLIBC = "2.28"
MOST_BYTES = 25_000_000
# Targets of the device code, as csrc/CMakeLists.txt has them for this nvcc.
ARCHITECTURES = ("80", "90-real", "100-real", "120")

# The first permits libc++. The second has nvcc's headers leave isnan, isinf and isfinite to the C++ library, as they
# do with libstdc++: libc++ has them as functions, too.
NVCC_FLAGS = ("-D_ALLOW_UNSUPPORTED_LIBCPP", "-D_GLIBCXX_MATH_H=1")


@dataclass(frozen=True)
class Tools:
    """Where the environment of `requirements.txt` lies."""

    programs: Path
    packages: Path

    @property
    def zig(self) -> Path:
        """The compiler."""
        return self.packages / "ziglang" / "zig"

    @property
    def cuda_libraries(self) -> Path:
        """The static CUDA runtime."""
        return self.packages / "nvidia" / "cu13" / "lib"


def compiler_script(tools: Tools) -> str:
    """Return the program that CMake and nvcc take for a C++ compiler: they want one file, without arguments."""
    return f'#!/bin/sh\nexec "{tools.zig}" c++ -target x86_64-linux-gnu.{GLIBC} "$@"\n'


def environment(
    base: Mapping[str, str], tools: Tools, tree: Path, compiler: Path, headers: Path, epoch: int
) -> dict[str, str]:
    """Return the environment variables of a build.

    Args:
        base: those of this process.
        tools: compilers and build tools.
        tree: the sources; outputs that can be used again go beside them.
        compiler: the program of `compiler_script`.
        headers: the folder `headers`.
        epoch: seconds since 1970, of all files in the wheel.
    """
    # Of the environment that the Makefile names for clippy and rustdoc.
    kept = {name: value for name, value in base.items() if name != "PYO3_PYTHON"}
    return kept | {
        "CARGO_TARGET_DIR": str(tree.parent / "cargo"),
        "CARGO_ZIGBUILD_ZIG_PATH": str(tools.zig),
        "CUDAHOSTCXX": str(compiler),
        "CXX": str(compiler),
        # evex512: zig says what the lowest processor lacks, and clang 19 then has no registers of 512 bits, whatever
        # an option of one file says.
        "CXXFLAGS": f"-mevex512 -ffile-prefix-map={tree}=.",
        # CMake asks the host compiler where libraries are, and does not understand zig's answer.
        "LDFLAGS": f'-L"{tools.cuda_libraries}"',
        "MATURIN_PEP517_ARGS": f"--zig --compatibility {PLATFORM.removesuffix('_x86_64')} --auditwheel check",
        "NVCC_APPEND_FLAGS": " ".join([*NVCC_FLAGS, f"-I{headers}"]),
        "PATH": os.pathsep.join([str(tools.programs), base.get("PATH", "")]),
        # Of the packages, only files that fit every version of Python are used.
        "PYTHONPATH": str(tools.packages),
        "RUSTFLAGS": f"--remap-path-prefix={tree}=.",
        "SOFTS_CUDA": "pip",
        "SOURCE_DATE_EPOCH": str(epoch),
    }


@dataclass(frozen=True)
class File:
    """A file of the release."""

    name: str
    n_bytes: int
    sha256: str
    #: What auditwheel says; empty for the sdist and for the wheel without native modules.
    platform: str


def complaints(files: Sequence[File]) -> list[str]:
    """Return what is wrong with the files, one line each."""
    found = []
    for file in files:
        if file.n_bytes >= MOST_BYTES:
            found.append(f"{file.name} has {file.n_bytes:,} bytes; it must have fewer than {MOST_BYTES:,}")
        if file.name.endswith(".whl") and not is_pure(file.name):
            if file.platform != PLATFORM:
                found.append(f"{file.name}: auditwheel finds {file.platform}; need {PLATFORM}")
            if not file.name.endswith(f"-{PLATFORM}.whl"):
                found.append(f"{file.name} is not named for {PLATFORM}")
    return found


def is_pure(name: str) -> bool:
    """Whether a file is the wheel for any platform, which has no native modules."""
    return name.endswith("-py3-none-any.whl")


def table(files: Sequence[File]) -> str:
    """Return the files as lines with columns."""
    rows = [("file", "MB", "sha256", "auditwheel")]
    rows += [(file.name, f"{file.n_bytes / 1e6:.2f}", file.sha256, file.platform or "-") for file in files]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
