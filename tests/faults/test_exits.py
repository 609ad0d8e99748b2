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

frontend, kind = sys.argv[1:]
config = sf.make_xy_config((32,), "float32", (), "int64")
torch.set_num_threads(1)


def batches_of(kind):
    if kind == "processes":
        return sf.SoftDataLoader(
            "p1", frontend, config, sf.ShmMedium, batch_size=2, num_workers=2, multiprocessing_context="fork"
        )
    data = sf.SoftIterableDataset("p1", frontend, config, sf.ShmMedium)
    return torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")


def train(made):
    global batches
    batches = iter(made)
    for _ in range(3):
        next(batches)
    print(os.getpid(), *(child.pid for child in multiprocessing.active_children()), flush=True)


def fail(made):
    train(made)
    raise ValueError("the training failed")


if kind == "torch":
    fail(batches_of(kind))
# A forked rank fails, with a loader that it has from the script, and the script ends well.
child = multiprocessing.get_context("fork").Process(target=fail, args=(batches_of("processes"),))
child.start()
child.join()
assert child.exitcode == 1
train(batches_of("processes"))
"""


@pytest.mark.parametrize(("kind", "n_trainings", "status"), [("torch", 1, 1), ("processes", 2, 0)])
def test_a_script_leaves_no_segment(market: Market, kind: str, n_trainings: int, status: int) -> None:
    market.slot_size = CONFIG.nbytes()
    market.broker()
    market.supplier()
    script, pids = started("-c", SCRIPT, market.frontend, kind)
    told, errors = script.communicate(timeout=50)
    pids.update(map(int, told.split()))
    assert len(pids) == 3 * n_trainings, errors
    assert script.returncode == status, errors
    assert errors.count("ValueError: the training failed") == 1
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all processes have ended")
    assert made_by(pids) == []
