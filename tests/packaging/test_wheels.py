"""The files of a release: which interpreters get a wheel, how it is built, and what it must be."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from build_backend import NVCC
from wheels import plan
from wheels.interpreters import HIGHEST, LOWEST, Interpreter, choose, find, probe, unfit
from wheels.release_check import wheel_of_this_python
from wheels.workplace import workplace

REPOSITORY = Path(__file__).parents[2]
FIT = Interpreter(
    path=Path("/a/python3.12"),
    implementation="cpython",
    version=(3, 12, 4),
    free_threaded=False,
    has_headers=True,
    machine="x86_64",
)
TOOLS = plan.Tools(Path("/tools/bin"), Path("/tools/packages"))
WHEEL = plan.File(f"softs_fast-1.0-cp312-cp312-{plan.PLATFORM}.whl", 4_300_000, "ab" * 32, plan.PLATFORM)


def test_the_first_fit_interpreter_of_each_version_gets_a_wheel() -> None:
    first, second = replace(FIT, path=Path("/b"), version=(3, 12, 1)), FIT
    older = replace(FIT, path=Path("/c"), version=(3, 11, 7))
    useless = replace(FIT, path=Path("/d"), version=(3, 13, 0), has_headers=False)
    assert choose([useless, first, second, older]) == [older, first]
    assert [interpreter.tag for interpreter in (older, first)] == ["cp311", "cp312"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"implementation": "pypy"}, "pypy, not CPython"),
        ({"version": (3, 10, 13)}, "not a version that softs-fast supports"),
        ({"version": (3, 15, 0)}, "not a version that softs-fast supports"),
        ({"free_threaded": True}, "free-threaded: _kernels is not declared to run without the GIL"),
        ({"has_headers": False}, "has no Python.h"),
        ({"machine": "aarch64"}, "aarch64, not x86_64"),
    ],
)
def test_others_get_none_and_the_reason_is_said(changes: dict[str, object], reason: str) -> None:
    assert unfit(FIT) is None
    assert unfit(replace(FIT, **changes)) == reason  # type: ignore[arg-type]


def test_interpreters_are_found_on_the_path_and_among_versions_of_pyenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(folder: str, *lines: str) -> Path:
        program = tmp_path / folder / "python3.12"
        program.parent.mkdir(parents=True)
        program.write_text("\n".join(["#!/bin/sh", *lines]))
        program.chmod(0o755)
        return program

    broken = put("shims", "exit 127")
    for version in ("3.12.9", "3.12.10"):
        said = asdict(FIT) | {"path": f"/{version}", "version": [*map(int, version.split("."))]}
        put(f"versions/{version}/bin", f"echo '{json.dumps(said)}'")
    monkeypatch.setenv("PATH", str(broken.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert [str(interpreter.path) for interpreter in find()] == ["/3.12.10", "/3.12.9"]
    assert probe(broken) is None


def test_an_interpreter_says_what_it_is() -> None:
    here = probe(Path(sys.executable))
    assert here is not None
    assert here.path == Path(sys.executable)
    assert here.version == sys.version_info[:3]
    assert here.implementation == sys.implementation.name


def test_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if " :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(LOWEST[1], HIGHEST[1] + 1)]
    assert project["requires-python"] == f">=3.{LOWEST[1]}"


def test_requirements_are_exact_and_fit_those_of_the_backend() -> None:
    lines = (REPOSITORY / "wheels" / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    build_system = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {requirement.partition(">=")[0] for requirement in build_system} <= set(pinned)
    for requirement in NVCC:
        name, version = requirement.split("==")
        assert pinned[name].startswith(version.removesuffix("*"))


def test_architectures_are_those_of_cmake() -> None:
    text = (REPOSITORY / "csrc" / "CMakeLists.txt").read_text()
    assert f"set(cuda_architectures {' '.join(plan.ARCHITECTURES)})" in text


def test_a_build_takes_its_compilers_from_the_packages_and_hides_its_folder() -> None:
    base = {
        "PATH": "/usr/bin",
        "CXX": "g++",
        "RUSTFLAGS": "-Copt-level=1",
        "HOME": "/home/a",
        "PYO3_PYTHON": "/b",
    }
    tree = Path("/somewhere/tree")
    found = plan.environment(
        base, TOOLS, tree, Path("/somewhere/zig-c++"), Path("/somewhere/headers"), epoch=7
    )
    assert found["CXX"] == found["CUDAHOSTCXX"] == "/somewhere/zig-c++"
    assert found["CARGO_ZIGBUILD_ZIG_PATH"] == "/tools/packages/ziglang/zig"
    assert found["PATH"] == "/tools/bin:/usr/bin"
    assert found["SOURCE_DATE_EPOCH"] == "7"
    assert found["RUSTFLAGS"] == "--remap-path-prefix=/somewhere/tree=."
    assert "-ffile-prefix-map=/somewhere/tree=." in found["CXXFLAGS"].split()
    assert "--zig --compatibility manylinux_2_28 " in found["MATURIN_PEP517_ARGS"]
    assert found["HOME"] == "/home/a"
    assert "PYO3_PYTHON" not in found
    script = plan.compiler_script(TOOLS)
    assert script.startswith("#!/bin/sh\n")
    assert '"/tools/packages/ziglang/zig" c++ -target x86_64-linux-gnu.2.28 "$@"' in script


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_bytes": plan.MOST_BYTES}, "has 25,000,000 bytes; it must have fewer than 25,000,000"),
        (
            {"platform": "manylinux_2_36_x86_64"},
            "auditwheel finds manylinux_2_36_x86_64; need manylinux_2_28_x86_64",
        ),
        ({"name": "softs_fast-1.0-cp312-cp312-linux_x86_64.whl"}, "is not named for manylinux_2_28_x86_64"),
    ],
)
def test_a_file_that_must_not_be_released_is_named(changes: dict[str, object], words: str) -> None:
    sdist = plan.File("softs_fast-1.0.tar.gz", 14_000_000, "cd" * 32, "")
    assert plan.complaints([sdist, WHEEL]) == []
    (line,) = plan.complaints([sdist, replace(WHEEL, **changes)])  # type: ignore[arg-type]
    assert words in line


def test_the_table_has_a_line_for_each_file() -> None:
    sdist = plan.File("softs_fast-1.0.tar.gz", 14_012_345, "cd" * 32, "")
    head, first, second = plan.table([sdist, WHEEL]).splitlines()
    assert head.split() == ["file", "MB", "sha256", "auditwheel"]
    assert first.split() == [sdist.name, "14.01", sdist.sha256, "-"]
    assert second.split() == [WHEEL.name, "4.30", WHEEL.sha256, plan.PLATFORM]
    assert head.index("MB") == first.index("14.01") == second.index("4.30")


def test_a_check_without_the_wheel_of_this_python_says_what_makes_it(tmp_path: Path) -> None:
    (tmp_path / "softs_fast-1.0-cp399-cp399-linux_x86_64.whl").touch()
    with pytest.raises(SystemExit, match=r"has 0 wheels for cp3\d+, expected 1; run make wheels first"):
        wheel_of_this_python(tmp_path)


def test_the_workplace_is_empty_private_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "work"
    (path / "old").mkdir(parents=True)
    (path / "link").symlink_to(tmp_path)
    path.chmod(0o777)
    with workplace(path):
        assert [*path.iterdir()] == []
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "made").write_text("")
    assert not path.exists()
    assert tmp_path.exists()


def test_a_workplace_is_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.mkdir()
    (path / "of the other one").write_text("")
    folder = os.open(path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(SystemExit, match="another process builds wheels"), workplace(path):
        pass
    os.close(folder)
    assert [*path.iterdir()] != []


def test_a_workplace_is_no_link(tmp_path: Path) -> None:
    path = tmp_path / "work"
    (tmp_path / "of a user").mkdir()
    (tmp_path / "of a user" / "file").write_text("")
    path.symlink_to(tmp_path / "of a user")
    with pytest.raises(OSError, match="work"), workplace(path):
        pass
    assert (tmp_path / "of a user" / "file").exists()
