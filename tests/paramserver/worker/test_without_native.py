"""A worker on a machine without the native modules, such as a Mac: it says what is missing, and how far it came."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WATCHDOG_S

pytest.importorskip("urllib3", reason="needs the extra paramworker")
from fake_server import FakeServer, linear

from softs_fast.paramserver.wire.messages import RunConfig

BLOCKED = """
import sys
sys.modules["softs_fast._core"] = None
sys.modules["softs_fast._kernels"] = None
"""

JOB = """
import torch
from torch import nn
from softs_fast.paramserver.job import Job

def model():
    torch.manual_seed(1)
    return nn.Linear(3, 1)

def job():
    x = torch.linspace(-1, 1, 30).reshape(10, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return Job(model, lambda module, batch: nn.functional.mse_loss(module(batch[0]), batch[1]), lambda: data)
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BLOCKED + program, *arguments], cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


MAIN = "from softs_fast.cli import main\nsys.exit(main(sys.argv[1:]))"


def test_ctrl_c_ends_it_with_a_summary(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(JOB)
    config = RunConfig(rounds=1000, batch_size=3)
    # The round waits for a second worker, which never comes.
    with FakeServer(linear(), config, need=2) as server:
        process = run(
            tmp_path, MAIN, "paramserver", "worker", str(server.invite), "tiny:job", "--device", "cpu"
        )
        server.wait_for(lambda: server.requests["GET /v1/model"] >= 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WATCHDOG_S)
        assert process.returncode == 130
        assert "1 pushes of 3 samples counted, 0 stale" in errors
        assert "Traceback" not in errors
        assert server.left == ["w0"]
