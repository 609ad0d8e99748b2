"""What each rank does for a checkpoint, and in which order: folders by the first one, while others wait."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import softs_fast.dataflow as df
from softs_fast.dataflow.process.state import checkpoints
from softs_fast.errors import FlowError


class Model(df.Role):
    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps in their order; a group of torch.distributed needs other processes."""
    steps: list[str] = []
    monkeypatch.setattr(dist, "get_global_rank", lambda group, rank: 4 + rank)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: steps.append("all"))
    monkeypatch.setattr(dcp, "save", lambda state, **arguments: steps.append("save"))
    return steps


def note(steps: list[str], folder: Path, said: str = "") -> Any:
    """Return a broadcast that notes which folders are there."""

    def broadcast(tensor: Tensor, src: int, group: Any) -> None:
        assert src == 4
        text = bytes(tensor.tolist()).rstrip(b"\0").decode()
        steps.append(" ".join(sorted(path.name for path in folder.glob("*/*"))) + text)
        if said:
            tensor[: len(said)] = torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)

    return broadcast


def test_the_first_rank_makes_and_names_the_folder_before_others_go_on(
    group: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "broadcast", note(group, tmp_path))
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    checkpoints.save("actor", Model(), tmp_path, 3, group=object())
    assert group == ["all", ".step-3.partial", "all", "save", "step-3"]


def test_the_others_wait_before_and_after_and_make_nothing(
    group: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "broadcast", note(group, tmp_path))
    monkeypatch.setattr(dist, "get_rank", lambda group: 1)
    checkpoints.save("actor", Model(), tmp_path, 3, group=object())
    assert group == ["all", "", "all", "save", ""]


def test_all_know_why_the_first_rank_has_failed(
    group: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(dist, "broadcast", note(group, tmp_path))
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    with pytest.raises(NotADirectoryError):
        checkpoints.save("actor", Model(), tmp_path / "file", 3, group=object())
    begun, said = group
    assert begun == "all", "the master has workers that have not begun a failed call leave it out"
    assert "Not a directory" in said
    monkeypatch.setattr(dist, "broadcast", note(group, tmp_path, said="the disk is full"))
    monkeypatch.setattr(dist, "get_rank", lambda group: 1)
    with pytest.raises(FlowError, match=r"step-3 is not written: the disk is full$"):
        checkpoints.save("actor", Model(), tmp_path / "file", 3, group=object())
    assert "save" not in group


@pytest.mark.parametrize("at", range(1, 4))
def test_a_process_that_ends_while_a_checkpoint_is_replaced_leaves_one(
    at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Renames and removals of the last folder are counted; the process ends before one of them."""
    role = Model()
    checkpoints.save("actor", role, tmp_path, 3)
    weights = [role.net.weight.item()]
    with torch.no_grad():
        role.net.weight += 1
    weights.append(role.net.weight.item())
    n_done, rename, rmtree = 0, Path.rename, shutil.rmtree

    def count() -> None:
        nonlocal n_done
        n_done += 1
        if n_done == at:
            raise KeyboardInterrupt

    def counted_rename(path: Path, target: Path) -> Path:
        if path.parent.name == "actor":
            count()
        return rename(path, target)

    def counted_rmtree(path: Path, **arguments: Any) -> None:
        if path.exists() and not path.name.endswith(".partial"):
            count()
        rmtree(path, **arguments)

    monkeypatch.setattr(Path, "rename", counted_rename)
    monkeypatch.setattr(shutil, "rmtree", counted_rmtree)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save("actor", role, tmp_path, 3)
    monkeypatch.undo()
    found = Model()
    assert checkpoints.load("actor", found, tmp_path) == 3
    assert found.net.weight.item() == weights[at == 3]
    checkpoints.save("actor", role, tmp_path, 3)
    assert [path.name for path in (tmp_path / "actor").iterdir()] == ["step-3"]
    checkpoints.load("actor", found, tmp_path)
    assert found.net.weight.item() == weights[1]
