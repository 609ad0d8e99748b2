"""Workers of one role meet before they enter a function: one that is in an earlier step is waited for, however long."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import ranks

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.process.groups import Groups

#: Time-out of torch in these tests, seconds; it is 1,800 otherwise.
TORCH_S = 1.0


class Model(df.Role):
    def train(self, rows: df.Rows) -> None: ...


def agree_late(say: Callable[[Any], None], rank: int, size: int, path: str) -> None:
    """The last rank is late."""
    import torch.distributed as dist

    role = df.place(Model, f"dp{size}", on=list(range(size)), name="actor")
    declaration = Declaration((df.call(role.train, "x", rows=size),))
    real = dist.new_group

    def new_group(numbers: list[int], **given: Any) -> Any:
        return real(numbers, **{"timeout": timedelta(seconds=TORCH_S), **given})

    with mock.patch.object(dist, "new_group", new_group), Groups(declaration, rank, path) as groups:
        (placed,) = declaration.roles
        if rank == size - 1:
            time.sleep(3 * TORCH_S)
        say(groups.agree(placed, is_well=True))


def test_a_rank_that_is_late_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    path.touch()
    with ranks.start(agree_late, 2, str(path)) as processes:
        assert processes.results() == [True, True]
