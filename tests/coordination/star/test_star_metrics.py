"""Metrics of stars, and the loggers that users give."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

# Not loaded here: it must be told first that processes fork.
if not importlib.util.find_spec("grpc"):
    pytest.skip("needs the extra grpc", allow_module_level=True)
from softs_fast.coordination.star import GrpcStrategy
from softs_fast.coordination.star.metrics import render_metrics


def serves_metrics(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with GrpcStrategy(timeout_s=20).init(rank, size, folder) as star:
        star.all_reduce(torch.ones(100))
        star.all_reduce_gradients({"a": torch.ones(50)})
        text = render_metrics({"main": star})
        star.barrier()
    assert 'collective_joined{strategy="main"} 0' in render_metrics({"main": star})
    return text


def test_rank_0_has_the_bytes_of_each_other_rank(tmp_path: Path) -> None:
    texts = ranks.run(serves_metrics, 3, str(tmp_path))
    for rank, text in enumerate(texts):
        labels = f'strategy="main",rank="{rank}",operation='
        assert f'softs_fast_collective_calls_total{{{labels}"all_reduce"}} 1' in text
        assert f'softs_fast_collective_bytes_total{{{labels}"all_reduce_gradients"}} 200' in text
        assert f'softs_fast_collective_errors_total{{{labels}"all_reduce"}} 0' in text
    for peer in (1, 2):
        for name in ("received", "sent"):
            assert f'softs_fast_star_{name}_bytes_total{{strategy="main",peer="{peer}"}} 600' in texts[0]
        assert f'softs_fast_star_waited_seconds_total{{strategy="main",peer="{peer}"}} 0.' in texts[0]
    assert 'softs_fast_star_refused_total{strategy="main"} 0' in texts[0]
    assert "peer=" not in texts[1] + texts[2]


def logs(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    lines: list[str] = []
    logger = logging.getLogger("of.a.user")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    with GrpcStrategy(timeout_s=20, logger=logger).init(rank, size, folder) as star:
        star.barrier()
    return lines


def test_what_happens_is_logged_to_the_logger_of_the_user(tmp_path: Path) -> None:
    lines = ranks.run(logs, 2, str(tmp_path))
    assert len(lines[0]) == 1
    assert lines[0][0].startswith("rank 1 (process ")
    assert "has joined epoch 1" in lines[0][0]
