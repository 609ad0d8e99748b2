"""A script that ends with iterators that live leaves no segment, however it ends and whichever processes it has."""

from pathlib import Path

import pytest
from market import Market
from script import started
from segments import made_by
from waiting import eventually

import softs_fast

CONFIG = softs_fast.make_xy_config((32,), "float32", (), "int64")

SCRIPT = """
import multiprocessing, os, sys
import torch
import softs_fast as sf

frontend, kind, end = sys.argv[1:]
config = sf.make_xy_config((32,), "float32", (), "int64")
torch.set_num_threads(1)


def batches_of(kind):
    if kind == "processes":
        return sf.SoftDataLoader(
            "p1", frontend, config, sf.ShmMedium, batch_size=2, num_workers=2, multiprocessing_context="fork"
        )
    data = sf.SoftIterableDataset("p1", frontend, config, sf.ShmMedium)
    return torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")


def train():
    global batches
    batches = iter(batches_of(kind))
    for _ in range(3):
        next(batches)
    print(os.getpid(), *(child.pid for child in multiprocessing.active_children()), flush=True)
    if end == "exception":
        raise ValueError("the training failed")


if kind == "forked rank":
    made = batches_of("processes")
    batches_of = lambda kind: made
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
train()
"""


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("processes", "end"),
        ("torch", "exception"),
        ("forked rank", "exception"),
    ],
)
def test_a_script_leaves_no_segment(market: Market, kind: str, end: str) -> None:
    market.slot_size = CONFIG.nbytes()
    market.broker()
    market.supplier()
    script, pids = started("-c", SCRIPT, market.frontend, kind, end)
    _, errors = script.communicate(timeout=50)
    assert len(pids) == 3, errors
    assert script.returncode == {"exception": 1, "end": 0}[end], errors
    assert ("the training failed" in errors) == (end == "exception")
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all processes have ended")
    assert made_by(pids) == []
