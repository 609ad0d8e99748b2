"""A fleet on a Ray cluster: the page's program, a node that is lost, a driver that is killed; and what is refused."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray_environment import driver, session_of
from segments import made_by, sweep_until
from waiting import eventually

import softs_fast as sf

DRIVER = Path(__file__).with_name("ray_fleet_driver.py")
PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()


def make_supplier() -> sf.Supplier:
    raise AssertionError("it is never called here")


@pytest.mark.full
# Downloads of some 100 MB the first time.
@pytest.mark.timeout(600)
def test_a_fleet_on_ray_outlives_a_node_and_ends_with_its_driver(short_path: Path) -> None:
    folder = short_path / "program"
    folder.mkdir()
    said: list[str] = []
    of_ranks: set[str] = set()
    with driver(DRIVER, folder, folder=short_path) as process:
        assert process.stdout is not None
        while not said or not said[-1].startswith("serving again"):
            line = process.stdout.readline()
            assert line, (short_path / "errors").read_text()[-5000:]
            # Ray's lines begin with its own colours.
            if re.match(r"\(32, 784\)|refused|serving", line):
                said.append(line)
            of_ranks.update(re.findall(r"rank \d: \d+", line))
        members = set(session_of(process.pid))
        assert not [pid for pid in members if _is_worker_with_ray(pid)], "a worker does not import Ray"
        process.kill()
        eventually(lambda: not [pid for pid in session_of(process.pid) if _is_ours(pid)], "no worker is left")
    sweep_until(lambda: made_by(members) == [])
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.split("\n## Ray\n")[1], flags=re.DOTALL)[:1]
    assert "".join(said[:-6]) == shown
    assert of_ranks == {"rank 0: 0", "rank 0: 64", "rank 1: 1", "rank 1: 65"}
    foreign, refused, *serving = said[-6:]
    assert foreign.startswith("refused: node ")
    assert (
        "cannot import make_worker: No module named 'only_here'; bring its module there, as by ray.init("
        in foreign
    )
    assert "of 4 hosts serve after" in refused
    assert "each needs a node of its own with 2 CPU, and Ray has " in refused
    assert serving == [f"serving{when}\n" for when in (" more: 3", " fewer: 1", ": 4", " again: 4")]


def _is_ours(pid: int) -> bool:
    """Whether a process is an actor of the fleet, a worker of it, or what starts these."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"softs_fast" in command or command.startswith(b"ray::Host")


def _is_worker_with_ray(pid: int) -> bool:
    """Whether a process is a worker of the fleet, or what starts these, and has imported Ray."""
    try:
        command, files = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "maps"))
    except OSError:
        return False
    return b"softs_fast.fleet.forking" in command and b"_raylet.so" in files


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hosts": 0}, "hosts must be a number from 1 to 1024, got 0"),
        ({"hosts": 1.5}, r"hosts must be a number from 1 to 1024, got 1\.5"),
        ({"n_workers": 0}, "n_workers must be a number from 1 to 1024, got 0"),
        ({"make_worker": "teachers"}, "make_worker must be a function, got str"),
    ],
)
def test_arguments_that_make_no_fleet(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(sf.ConfigError, match=text):
        sf.RayFleet(**{"make_worker": make_supplier, **arguments})


def test_functions_that_nodes_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sf.ConfigError, match="make it a function of a module"):
        sf.RayFleet(lambda: make_supplier())
    monkeypatch.setattr("__main__.make_supplier", make_supplier, raising=False)
    monkeypatch.setattr(make_supplier, "__module__", "__main__")
    monkeypatch.setattr("__main__.__spec__", object())
    with pytest.raises(sf.ConfigError, match="put it into a module of its own"):
        sf.RayFleet(partial(make_supplier))


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(sf.ConfigError, match=r"pip install 'softs-fast\[ray\]'"), sf.RayFleet(make_supplier):
        pass
