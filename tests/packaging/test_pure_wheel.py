"""The wheel for any platform: built, installed into an empty folder, and used where no native module is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import WATCHDOG_S

pytest.importorskip("urllib3", reason="needs the extra paramworker")
pytest.importorskip("uvicorn", reason="needs the extra server")

from wheels import plan

from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.wire.messages import RunConfig

REPOSITORY = Path(__file__).parents[2]

# -S leaves out what installs this repository's package into the environment; -I leaves out PYTHONPATH.
RUN = [sys.executable, "-I", "-S", "-c"]
PATHS = "import sys; sys.path[:0] = {paths!r}\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, in which native modules lie."""
    return build(tmp_path_factory.mktemp("dist"), 0o022)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    done = subprocess.run([*pip, folder, wheel], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def build(folder: Path, mask: int, **environment: str) -> Path:
    # maturin is a program of this environment, which need not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = f"import build_backend; build_backend.build_pure_wheel({str(folder)!r})"
    variables = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=variables | {"PATH": path} | environment, umask=mask,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


def members(wheel: Path) -> tuple[list[tuple[object, ...]], set[tuple[int, ...]]]:
    """All but the dates of the files in a wheel, and the dates."""
    with zipfile.ZipFile(wheel) as archive:
        found = archive.infolist()
    told = [
        (
            *(one.filename, one.external_attr, one.CRC, one.compress_size, one.extra, one.flag_bits),
            *(one.compress_type, one.create_system, one.create_version, one.comment),
        )
        for one in found
    ]
    return told, {one.date_time for one in found}


JOB = """
import torch
from torch import nn
from softs_fast.paramserver import Job

def model():
    torch.manual_seed(1)
    return nn.Linear(3, 1)

def data():
    x = torch.linspace(-1, 1, 36).reshape(12, 3)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

def loss(module, batch):
    return nn.functional.mse_loss(module(batch[0]), batch[1])

JOB = Job(model, loss, data, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
"""


#: Prints which names of the package work without native modules, and then the modules that do not, a line each.
LOOK = """
import importlib, pathlib, softs_fast
assert softs_fast.__file__.startswith(sys.path[0]), softs_fast.__file__
works = []
for name in softs_fast.__all__:
    try:
        getattr(softs_fast, name)
        works.append(name)
    except ImportError as error:
        text = str(error)
        assert text.startswith(f"softs_fast.{name} needs native modules: "), text
        assert "Linux on x86-64" in text and "softs-fast paramserver worker" in text, text
print(*works)
for path in sorted(pathlib.Path(softs_fast.__file__).parent.rglob("*.py")):
    parts = path.relative_to(sys.path[0]).with_suffix("").parts
    if "_dropin" in parts or parts[-1] in ("__main__", "dropin"):
        continue
    name = ".".join(parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert "Linux on x86-64" in str(error), (name, error)
        print(name)
"""


def paths(installed: Path) -> str:
    """Has a process find the installed wheel, and the packages of this environment, but not this repository."""
    return PATHS.format(paths=[str(installed), sysconfig.get_path("purelib")])


def test_it_holds_the_package_and_no_native_module(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        listed = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
        about = archive.read(record.replace("RECORD", "WHEEL")).decode()
        metadata = archive.read(record.replace("RECORD", "METADATA")).decode()
    package = REPOSITORY / "python"
    sources = {file.relative_to(package).as_posix() for file in (package / "softs_fast").rglob("*.py")}
    assert sources <= names
    assert {"softs_fast/py.typed", "softs_fast/_core.pyi", "softs_fast/_dropin/softs/__init__.py"} <= names
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []
    assert listed == names
    assert {"Root-Is-Purelib: true", "Tag: py3-none-any"} <= {*about.splitlines()}
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"softs_fast"}
    # That of a wheel for Linux is the same.
    required = re.findall(r"^Requires-Dist: ([a-z]+)(?!.*extra ==)", metadata, re.MULTILINE)
    assert sorted(required) == ["msgpack", "msgspec", "numpy", "pyyaml"]
    (version,) = re.findall(r"^Version: (.*)$", metadata, re.MULTILINE)
    assert f'version = "{version}"' in (REPOSITORY / "Cargo.toml").read_text()


def test_the_same_files_make_the_same_bytes_but_for_the_date(wheel: Path, tmp_path: Path) -> None:
    files, dates = members(wheel)
    assert dates == {(1980, 1, 1, 0, 0, 0)}
    again = build(tmp_path, 0o077, SOURCE_DATE_EPOCH="1700000000")
    assert members(again) == (files, {(2023, 11, 14, 22, 13, 20)})


def test_the_command_says_it_too(installed: Path) -> None:
    program = "import softs_fast.cli\nsys.exit(softs_fast.cli.main(['broker']))"
    done = subprocess.run(
        [*RUN, paths(installed) + program], cwd=installed, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "softs-fast broker needs native modules: those of softs-fast are not here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_of_it_trains_with_a_server_and_what_needs_native_modules_says_so(
    installed: Path, tmp_path: Path
) -> None:
    """In one process, as torch takes seconds to import."""
    (tmp_path / "tiny.py").write_text(JOB)
    namespace: dict[str, Any] = {}
    exec(JOB, namespace)
    files = ServerOptions(
        listen="127.0.0.1:0", state=tmp_path / "state", output=tmp_path / "model.pth", linger_s=1.0
    )
    config = RunConfig(rounds=3, batch_size=4, push_codec="top_k", top_k_fraction=0.5)
    program = f"from softs_fast.cli import main\nassert main(sys.argv[1:]) == 0\n{LOOK}"
    with Server(namespace["JOB"], RunOptions(world_size=1, rounds=3), config, files) as server:
        command = ["paramserver", "worker", "-", "tiny:JOB", "--device", "cpu", "--name", "mac"]
        worker = subprocess.Popen(
            [*RUN, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + paths(installed) + program, *command],
            cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        watchdog = threading.Timer(WATCHDOG_S, worker.kill)
        watchdog.start()
        out, errors = worker.communicate(f"{server.invite}\n")
        watchdog.cancel()
        assert worker.returncode == 0, errors
        assert "3 pushes of 12 samples counted" in errors
        assert "the run is over at version 3: all 3 rounds are done" in errors
    works, *refused = out.splitlines()
    assert "__version__" in works.split()
    named = {name for name in works.split() if name not in ("__version__", "setup_logging")}
    assert {"ConfigError", "SoftsError", "WireError"} <= named
    assert not {"Broker", "Fleet", "SoftDataLoader", "BatchConfig", "Worker", "switch_model"} & named
    assert [name for name in refused if name.startswith("softs_fast.paramserver")] == []
    assert {"softs_fast.market", "softs_fast.collectives.host", "softs_fast.kernels"} <= {*refused}


def test_a_release_may_have_it_beside_wheels_for_linux() -> None:
    pure = plan.File("softs_fast-1.0-py3-none-any.whl", 400_000, "ef" * 32, "")
    assert plan.complaints([pure]) == []
    (line,) = plan.complaints([replace(pure, n_bytes=plan.MOST_BYTES)])
    assert pure.name in line
