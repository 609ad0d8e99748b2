"""A teacher on a GPU: what it sends is in pinned host memory, and was waited for once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from softs_fast.codecs import TopKLogits, topk_logits
from softs_fast.teachers import Output, TorchTeacher
from softs_fast.teachers.host_batch import HostBatch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch needs a GPU; the stand-in is none"
)

DATA = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1000))


def test_samples_are_those_of_the_module_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = 0
    synchronize = torch.cuda.Stream.synchronize

    def counted(stream: torch.cuda.Stream) -> None:
        nonlocal waits
        waits += 1
        synchronize(stream)

    monkeypatch.setattr(torch.cuda.Stream, "synchronize", counted)
    outputs = {"input": None, "top": Output("output", "topk:8"), "h": Output("outputs[0]", dtype="bfloat16")}
    maker = TorchTeacher(make_net, DATA, outputs, max_rows=16)._load()
    made: dict[str, Any] = maker.for_product("p", 50, tuple(range(50)))
    assert waits == 1
    top = made["top"]
    assert isinstance(top, TopKLogits)
    assert all(tensor.is_pinned() for tensor in (made["input"], made["h"], *top))
    net = make_net().cuda()
    with torch.inference_mode():
        hidden = net[0](made["input"].cuda())
        expected = topk_logits(net[1:](hidden), 8)
    torch.testing.assert_close(made["h"], hidden.bfloat16().cpu())
    torch.testing.assert_close(top.values, expected.values.cpu(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(top.lse, expected.lse.cpu(), rtol=1e-3, atol=1e-4)


def test_copies_end_before_the_rows_are_returned() -> None:
    """Rows that a long kernel makes are complete."""
    device = torch.device("cuda", 0)
    for _ in range(5):
        batch = HostBatch(4, device)
        for start in (0, 2):
            work = torch.eye(2048, device=device)
            for _ in range(20):
                work = work @ work
            batch.put(start, {"x": work[:2]})
        made = batch.finish()["x"]
        assert isinstance(made, torch.Tensor)
        assert torch.equal(made, torch.eye(2048)[[0, 1, 0, 1]])
