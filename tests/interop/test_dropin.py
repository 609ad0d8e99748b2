"""`python -m softs_fast.dropin`: unmodified softs programs run on softs_fast, children included."""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

import softs_fast
from softs_fast import dropin

CHECK = """
import softs, softs.market.client, softs.configs, softs.market.mediums.shm
import softs.market as market
from softs.market.protocol import make_reply
from softs import TensorSpec
import softs_fast, softs_fast.market.client, softs_fast.market.mediums.shm
assert softs is softs_fast, softs
assert market is softs_fast.market
assert softs.market.client is softs_fast.market.client
assert softs.market.mediums.shm is softs_fast.market.mediums.shm
assert TensorSpec is softs_fast.configs.TensorSpec
assert softs.configs.__spec__.name == "softs_fast.configs"
assert make_reply.__module__ == "softs_fast.market.protocol"
"""


def run(
    *arguments: str | Path,
    python: tuple[str, ...] = (),
    cwd: Path | None = None,
    code: int = 0,
    stdin: str = "",
) -> str:
    """Run the drop-in and return what it wrote; fail unless it ends with `code`."""
    command = [sys.executable, *python, "-m", "softs_fast.dropin", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, input=stdin)
    assert result.returncode == code, result.stderr
    return result.stdout + result.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_the_real_softs_is_left_alone() -> None:
    spec = importlib.util.find_spec("softs")
    assert spec is not None
    assert "softs_fast" not in str(spec.origin)


def test_the_program_sees_itself_as_python_would_run_it(script: Path) -> None:
    script.write_text(
        'import sys, __main__\nif __name__ == "__main__":\n'
        "    print(sys.argv, __main__.__file__, sys.path[0], __spec__)\n    sys.exit(7)\n"
    )
    out = run(script, "--epochs", "3", "-m", code=7)
    expected = subprocess.run(
        [sys.executable, script, "--epochs", "3", "-m"], capture_output=True, text=True, check=False
    )
    assert out == expected.stdout
    assert expected.returncode == 7


def test_modules_code_and_standard_input(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(CHECK + "import sys; print(__name__, __package__, sys.argv[1:])")
    assert run("-m", "package.train", "-x", cwd=tmp_path) == "__main__ package ['-x']\n"
    assert run("-c", CHECK + "import sys; print(sys.argv)", "y") == "['-c', 'y']\n"
    assert run("-", "z", stdin=CHECK + "import sys; print(sys.argv)") == "['-', 'z']\n"


def test_modules_are_the_same_objects_and_exceptions_end_the_program_as_usual(script: Path) -> None:
    script.write_text(f"{CHECK}softs.TensorSpec('x', (-1,), 'int8')\n")
    out = run(script, code=1)
    assert "ConfigError" in out
    assert f'File "{script}", line {CHECK.count(chr(10)) + 1}' in out


@pytest.mark.parametrize("options", [("-X", "utf8=1"), ("-O", "-u", "-W", "ignore::UserWarning")])
def test_python_options_are_kept(options: tuple[str, ...]) -> None:
    program = "import sys; print(sys.orig_argv[1:-2])"
    assert run("-c", program, python=options) == f"{list(options)}\n"


def test_python_options_joined_with_m() -> None:
    program = "import sys; print(sys.orig_argv[1:-2])"
    command = [sys.executable, "-um", "softs_fast.dropin", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['-u']\n"
    command = [sys.executable, "-msofts_fast.dropin", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_children(script: Path, method: str) -> None:
    script.write_text(f"""
import multiprocessing, sys
from softs.configs import TensorSpec

def child(spec, queue):
    {CHECK.replace(chr(10), chr(10) + "    ")}
    assert type(spec) is TensorSpec is softs.configs.TensorSpec
    queue.put(spec)

if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    queue = context.Queue()
    spec = TensorSpec("x", (2,), "int8")
    process = context.Process(target=child, args=(spec, queue))
    process.start()
    assert queue.get(timeout=30) == spec
    process.join()
    sys.exit(process.exitcode)
""")
    run(script)


def test_subprocesses(script: Path) -> None:
    script.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHECK!r}], check=True)\n"
    )
    run(script)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_data_loader_workers(script: Path, method: str) -> None:
    script.write_text(f"""
import softs_fast.dropin
from torch.utils.data import DataLoader, Dataset

class Checks(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        {CHECK.replace(chr(10), chr(10) + "        ")}
        from softs.dataset import SoftIterableDataset
        from softs.catcher import ModelIOCatcher
        assert SoftIterableDataset is softs_fast.SoftIterableDataset
        return index

if __name__ == "__main__":
    softs_fast.dropin.install()
    loader = DataLoader(Checks(), num_workers=1, multiprocessing_context="{method}")
    print([int(index) for index in loader])
""")
    if method == "spawn":
        # On a busy machine torch's worker may end before it has released its semaphores, which is not ours to check.
        assert run(script, python=("-W", "ignore:resource_tracker")) == "[0, 1]\n"
        return
    # A fork of a process that has torch, which takes seconds to import.
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr


def test_pickles_of_both_packages_are_read(script: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.pickle"
    script.write_text(f"""
import pickle, softs
config = softs.make_xy_config((2,), "int8", (), "int8")
pickle.dump(config.specs, open({str(theirs)!r}, "wb"))
""")
    assert run_script(script).returncode == 0
    ours = tmp_path / "ours.pickle"
    ours.write_bytes(pickle.dumps(softs_fast.make_xy_config((2,), "int8", (), "int8").specs))
    script.write_text(f"""
import pickle, softs
for path in ({str(theirs)!r}, {str(ours)!r}):
    specs = pickle.load(open(path, "rb"))
    assert specs == softs.make_xy_config((2,), "int8", (), "int8").specs
    assert type(specs[0]) is softs.TensorSpec
""")
    run(script)


def test_a_missing_submodule_is_named_as_the_program_wrote_it() -> None:
    program = """
try:
    import softs.market.mediums.rdma
except ModuleNotFoundError as error:
    print(error, error.name)
"""
    expected = "No module named 'softs.market.mediums.rdma' softs.market.mediums.rdma\n"
    assert run("-c", program) == expected


def test_a_softs_beside_the_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "softs.py").touch()
    (tmp_path / "train.py").touch()
    assert f"{tmp_path}/softs.py lies beside the program" in run(tmp_path / "train.py", code=2)
    assert "lies beside the program" in run("-c", "pass", cwd=tmp_path, code=2)
    assert run("-c", "pass", cwd=tmp_path, python=("-P",)) == ""


def test_usage() -> None:
    assert run(code=2).startswith("softs_fast.dropin: usage: ")
    assert "usage: " in run("--help")
    assert "python -E and -I ignore PYTHONPATH" in _isolated("-E")


def _isolated(option: str) -> str:
    """Run the drop-in with an option that makes Python ignore PYTHONPATH."""
    start = f"import sys; sys.path[:0] = {sys.path!r}; import softs_fast.dropin as d; d.main()"
    result = subprocess.run(
        [sys.executable, option, "-c", start, "x.py"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    return result.stderr


def test_install_refuses_when_the_real_softs_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(sys)("softs")
    real.__file__ = "/site-packages/softs/__init__.py"
    monkeypatch.setitem(sys.modules, "softs", real)
    finders = list(sys.meta_path)
    with pytest.raises(softs_fast.SoftsError, match="already imported from /site-packages/softs"):
        dropin.install()
    assert sys.meta_path == finders
    assert os.environ.get("PYTHONPATH", "").find("_dropin") == -1


def test_install_in_process() -> None:
    program = f"import softs_fast.dropin as d; d.install(); d.install()\n{CHECK}"
    subprocess.run([sys.executable, "-c", program], check=True)
