"""Ranks of one machine that take themselves for ranks of several hosts, and what they do in tests of boards."""

from __future__ import annotations

from typing import Any

import torch
from waiting import eventually

from softs_fast.averaging import Refused, meeting
from softs_fast.averaging.board import Fetch
from softs_fast.averaging.hosts.group_board import GroupBoard


def pretend(number: int) -> None:
    """Let this process take itself for one of the host of that number."""
    meeting.host_id = lambda: f"host {number}"


def tensors(value: float, n: int = 1000) -> dict[str, torch.Tensor]:
    """Tensors of several dtypes, all of one value."""
    return {
        "weight": torch.full((n,), value),
        "half": torch.full((7,), value, dtype=torch.bfloat16),
        "wide": torch.full((3, 5), value, dtype=torch.float64),
        "count": torch.tensor(int(value)),
    }


def publish(board: GroupBoard, value: float, n: int = 1000, **said: Any) -> int:
    """Publish a version of tensors of one value."""
    known = {"step": int(value), "metric": value, "trained": 4, "config": {"lr": value}}
    return board.publish(tensors(value, n), **{**known, **said})


def take(board: GroupBoard, donors: list[tuple[int, float]]) -> Fetch | Refused:
    """Fetch, and wait for what comes of it."""
    board.fetch(donors)
    return eventually(board.fetched, f"the fetch of {donors}")
