"""Metrics of collectives: calls, bytes, seconds and errors of each operation, as text and over HTTP."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

from softs_fast.collectives import LinkStrategy, OpMetrics, Schedule, ShmStrategy
from softs_fast.collectives.meter import Meter
from softs_fast.errors import ConfigError
from softs_fast.monitoring.strategies import render_strategies
from softs_fast.monitoring.text_server import TextServer


def value(text: str, name: str, **labels: str) -> float:
    """Return a value of a text of metrics."""
    inner = ",".join(f'{key}="{content}"' for key, content in labels.items())
    found = re.findall(rf"^softs_fast_{name}\{{{re.escape(inner)}\}} (\S+)$", text, re.MULTILINE)
    assert len(found) == 1, (name, labels, text)
    return float(found[0])


def counts(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    shm = ShmStrategy(timeout_s=20, schedule=Schedule(1 << 15, 1 << 16)).init(rank, size, folder)
    link = LinkStrategy(timeout_s=20).init(rank, size, folder)
    with shm, link:
        for strategy in (shm, link):
            for _ in range(3):
                strategy.all_reduce(torch.ones(100))
            with pytest.raises(ConfigError):
                strategy.all_reduce(torch.ones(5 + rank))
            strategy.barrier()
        bucket = shm.bucket({"a": torch.ones(2)})
        bucket.all_reduce()
        with TextServer(lambda: render_strategies({"shm": shm, "link": link}), "127.0.0.1:0") as server:
            text = urllib.request.urlopen(server.url).read().decode()
        for name in ("shm", "link"):
            labels = {"strategy": name, "rank": str(rank), "operation": "all_reduce"}
            assert value(text, "collective_calls_total", **labels) >= 4
            assert value(text, "collective_bytes_total", **labels) >= 1200
            assert value(text, "collective_seconds_total", **labels) > 0
            assert value(text, "collective_errors_total", **labels) == 1
            assert value(text, "collective_errors_total", **{**labels, "operation": "barrier"}) == 0
            assert value(text, "collective_joined", strategy=name, rank=str(rank)) == 1


def test_calls_and_errors_are_served(tmp_path: Path) -> None:
    ranks.run(counts, 2, str(tmp_path))


def test_a_strategy_in_no_group_is_told_so() -> None:
    text = render_strategies({"late": ShmStrategy()})
    assert value(text, "collective_joined", strategy="late") == 0
    assert "operation=" not in text


def test_an_error_counts_as_a_call() -> None:
    meter = Meter()
    with pytest.raises(ConfigError), meter.lap("barrier", 8):
        raise ConfigError("a defect")
    with meter.lap("barrier", 8) as lap:
        lap.waiting_s = 0.0
    found = meter.metrics["barrier"]
    assert found == OpMetrics(2, 16, found.seconds, 0.0, 1)
