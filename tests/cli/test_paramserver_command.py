"""A parameter server and its workers as a person runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
import ranks
from shell import Command
from waiting import eventually, free_ports

from softs_fast.cli import main

JOB = """
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset
from softs_fast.paramserver.job import Job

def model():
    torch.manual_seed(1)
    return nn.Linear(8, 2)

def data():
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (x[:, 0] > 0).long())

def loss(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])

@torch.no_grad()
def evaluate(module):
    x, y = data().tensors
    return (module(x).argmax(1) == y).float().mean().item()

job = Job(model, loss, data, lambda parameters: optim.SGD(parameters, 0.5), evaluate=evaluate)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page_job.py").write_text(JOB)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def started(command: Command, folder: Path, *more: str) -> tuple[subprocess.Popen[str], str, str]:
    """A server, its invite and its page."""
    files = ["--state", str(folder / "s.state"), "--output", str(folder / "model.pth")]
    server = command.start("paramserver", "run", "page_job:job", *files, *more, **environment(folder))
    assert server.stdout is not None
    lines = dict(server.stdout.readline().strip().split(" ", 1) for _ in range(3))
    assert set(lines) == {"run", "invite", "page"}
    return server, lines["invite"], lines["page"]


def worker(command: Command, folder: Path, invite: str) -> subprocess.Popen[str]:
    return command.start(
        "paramserver", "worker", invite, "page_job:job", "--device", "cpu", **environment(folder)
    )


@pytest.mark.full
def test_a_run_of_the_page(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PIN WORLD_SIZE TOTAL_GLOBAL_BATCHES, then an evaluation."""
    server, invite, page = started(
        command, folder, "--world-size", "1", "--rounds", "20", "--quorum", "world", "--listen", "127.0.0.1:0"
    )
    state = ["--state", str(folder / "s.state")]
    assert main(["paramserver", "pause", *state]) == 0
    assert capsys.readouterr().out == "done\n"
    for target in (state[1], page):
        assert main(["status", target]) == 0
        assert capsys.readouterr().out.splitlines()[0] == "version 1.0 of 20, paused"
    with urllib.request.urlopen(page.partition("#")[0], timeout=45) as answer:
        assert b"Parameter server" in answer.read()
    assert main(["paramserver", "resume", *state]) == 0
    one = worker(command, folder, invite)
    out, errors = server.communicate(timeout=45)
    assert server.returncode == 0, errors
    assert out.startswith("all 20 rounds are done; version 20, ")
    one.communicate(timeout=45)
    assert one.returncode == 0
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert main(["paramserver", "evaluate", "page_job:job", "model.pth"]) == 0
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.9


def serve(say: object, rank: int, size: int, folder: Path, *arguments: str) -> int:
    """Run a server in this process; its output goes to a file, and its status is returned."""
    sys.path.insert(0, str(folder))
    files = ["--state", str(folder / "s.state"), "--output", str(folder / "model.pth")]
    with open(folder / "out", "w") as file, redirect_stdout(file):
        return main(["paramserver", "run", "page_job:job", "--log-level", "error", *files, *arguments])


def test_sigterm_ends_the_process_and_not_the_run(folder: Path) -> None:
    """In forks of a process that has torch, which takes seconds to import."""
    out = folder / "out"

    @contextmanager
    def served(listen: str) -> Iterator[tuple[str, ranks.Ranks]]:
        out.unlink(missing_ok=True)
        with ranks.start(
            serve, 1, folder, "--world-size", "1", "--rounds", "5", "--listen", listen
        ) as server:
            eventually(lambda: out.exists() and out.read_text().count("\n") == 3, "it serves")
            yield out.read_text().splitlines()[1], server

    # The next one listens there, too: no port that the kernel gives to others meanwhile.
    with served(f"127.0.0.1:{free_ports()[0]}") as (invite, server):
        os.kill(server.processes[0].pid, signal.SIGTERM)
        assert server.receive(0) == 0
        assert "interrupted" not in out.read_text()
    with served(invite.rpartition("//")[2]) as (same, again):
        assert same == invite
        os.kill(again.processes[0].pid, signal.SIGINT)
        assert again.receive(0) == 0
        assert out.read_text().splitlines()[3].startswith("interrupted; version 0, ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--world-size", "2", "--rounds", "5", "--listen", "x:y"], "expected HOST:PORT"),
        (["--world-size", "2", "--rounds", "5", "--listen", "softs://a,b"], "expected one host, got a:8000 and b:8000"),
        (["--world-size", "2", "--rounds", "5", "--tls-self-signed", "--listen", "softs://a?token_file=f"], "a token file makes the"),
        (["--world-size", "2", "--rounds", "5", "--listen", "0.0.0.0:0"], "without TLS"),
        (["--world-size", "2", "--rounds", "5", "--quorum", "3"], "quorum of the run is 3"),
        (["--world-size", "2", "--rounds", "5", "--quorum", "most"], "the word world"),
        (["--world-size", "2", "--rounds", "5", "--tls-key", "k"], "give both"),
        (["--world-size", "2", "--rounds", "5", "--token-file", "t", "--listen", "softs://a?token_file=f"], "'t' contradicts 'f'"),
    ],
)  # fmt: skip
def test_wrong_options(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    status = main(["paramserver", "run", "page_job:job", *arguments])
    out, errors = capsys.readouterr()
    assert (status, out) == (1, "")
    assert text in errors
    assert errors.startswith("softs-fast: ")


@pytest.mark.slow
def test_kills_on_both_sides(command: Command, folder: Path) -> None:
    """A server and a worker are killed in the middle; another worker takes its place, and the run ends as told."""
    given = [
        "--world-size",
        "2",
        "--rounds",
        "300",
        "--dataset-size",
        "96",
        "--lost-after",
        "3",
        "--log-level",
        "debug",
    ]
    server, invite, _ = started(command, folder, *given, "--listen", f"127.0.0.1:{free_ports()[0]}")
    first, second = worker(command, folder, invite), worker(command, folder, invite)
    state = ["--state", str(folder / "s.state")]

    def wait_for(version: int) -> None:
        while True:
            status, out, _ = command.run("paramserver", "status", *state)
            if status == 0 and int(out.split()[1].partition(".")[2]) >= version:
                return

    wait_for(10)
    first.kill()
    wait_for(40)
    third = worker(command, folder, invite)
    wait_for(60)
    server.kill()
    server.communicate()
    again, same, _ = started(command, folder, *given, "--listen", invite.rpartition("//")[2])
    assert same == invite
    out, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    assert out.startswith("all 300 rounds are done")
    for one in (second, third):
        out, errors = one.communicate(timeout=45)
        assert one.returncode == 0, errors
