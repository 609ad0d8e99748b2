"""Rows are put together in one buffer for each tensor."""

from __future__ import annotations

import pytest
import torch

from softs_fast.codecs import topk_logits
from softs_fast.teachers.forward import Made
from softs_fast.teachers.host_batch import HostBatch


def test_parts_lie_in_one_buffer() -> None:
    whole: dict[str, Made] = {
        "x": torch.randn(7, 2, 3),
        "n": torch.arange(7),
        "top": topk_logits(torch.randn(7, 4, 10), 3),
    }
    batch = HostBatch(7, torch.device("cpu"))
    for start, stop in ((0, 3), (3, 6), (6, 7)):
        batch.put(start, {name: rows(value, start, stop) for name, value in whole.items()})
    made = batch.finish()
    for name, value in whole.items():
        for got, expected in zip(parts(made[name]), parts(value), strict=True):
            assert torch.equal(got, expected)
            assert got.is_contiguous()
            assert not got.is_pinned()
    assert type(made["top"]) is type(whole["top"])


def test_copies_from_a_gpu_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer, pinned, for each tensor, one copy for each part, and one wait at the end."""
    log: list[str] = []
    empty, copy = torch.empty, torch.Tensor.copy_

    def noted_empty(*args: object, pin_memory: bool, **options: object) -> torch.Tensor:
        log.append(f"pinned {pin_memory}")
        return empty(*args, **options)  # type: ignore[call-overload, no-any-return]

    def noted_copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        log.append(f"copy {non_blocking}")
        return copy(self, source)

    class Stream:
        def synchronize(self) -> None:
            log.append("wait")

    monkeypatch.setattr(torch, "empty", noted_empty)
    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    batch = HostBatch(4, torch.device("cuda", 0))
    for start in (0, 2):
        batch.put(start, {"x": torch.ones(2, 3), "n": torch.arange(2)})
    assert log == ["pinned True", "copy True"] * 2 + ["copy True"] * 2
    batch.finish()
    assert log[-1] == "wait"
    assert log.count("wait") == 1


def rows(value: Made, start: int, stop: int) -> Made:
    if isinstance(value, torch.Tensor):
        return value[start:stop]
    return type(value)(*(part[start:stop] for part in value))


def parts(value: Made) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)
