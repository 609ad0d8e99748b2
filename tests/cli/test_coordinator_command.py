"""``softs-fast coordinator``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from shell import Command, Run

pytest.importorskip("grpc", reason="needs the extra grpc")
from softs_fast.cli.coordinator import render
from softs_fast.coordination.job.events import Completed
from softs_fast.coordination.job.messages import Fence, Saved
from softs_fast.coordination.job.status import FenceCount, SeatStatus, Status


def started(command: Command, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A coordinator that has said where it is."""
    process = command.start("coordinator", "run", "--listen", "127.0.0.1:0", "--log-level", "error", *options)
    assert process.stdout is not None
    said = {}
    for _ in range(1 + ("--metrics" in options)):
        line = process.stdout.readline()
        if not line:
            pytest.fail(process.communicate()[1])
        key, _, value = line.strip().partition(" ")
        said[key] = value
    return process, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_until_a_signal_comes(command: Command, run: Run, number: int) -> None:
    process, said = started(command, "--world-size", "2")
    status, out, errors = run("coordinator", "status", said["coordinator"])
    assert (status, errors) == (0, "")
    assert out.startswith('job "job" is forming for ')
    assert "need 2" in out
    assert command.end(process, number) == (0, "", "")
    status, _, errors = run("coordinator", "status", said["coordinator"])
    assert status == 1
    assert errors.startswith(f"softs-fast: no coordinator answers at {said['coordinator']}")
    assert errors.endswith("; start it, or correct the address\n")
    assert errors.count("\n") == 1


def test_status_as_json_and_watch(command: Command, run: Run) -> None:
    process, said = started(
        command, "--min-workers", "2", "--max-workers", "4", "--multiple-of", "2", "--job", "mine"
    )
    status, out, _ = run("coordinator", "status", said["coordinator"], "--json")
    assert status == 0
    assert json.loads(out)["name"] == "mine"
    assert json.loads(run("status", f"softs://{said['coordinator']}/mine", "--json")[1])["name"] == "mine"
    watch = command.start("status", said["coordinator"], "--json", "--watch")
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline())["phase"] == "forming"
    assert run("coordinator", "end", said["coordinator"], "--reason", "enough")[0] == 0
    assert json.loads(watch.stdout.readline())["phase"] == "ended"
    assert command.end(watch)[0] == 0
    assert command.end(process)[0] == 0


def test_what_administrators_do(command: Command, run: Run) -> None:
    process, said = started(command, "--world-size", "2")
    for words in (["evict", "1"], ["drain", "0"]):
        status, out, errors = run("coordinator", words[0], said["coordinator"], words[1])
        assert (status, out) == (1, "")
        assert f"no worker has seat {words[1]}" in errors
    assert run("coordinator", "resize", said["coordinator"], "1", "3")[0] == 0
    assert "need 1" in run("coordinator", "status", said["coordinator"])[1]
    status, _, errors = run("coordinator", "resize", said["coordinator"], "3", "1")
    assert status == 1
    assert "max_workers" in errors
    assert command.end(process)[0] == 0


def test_metrics(command: Command) -> None:
    process, said = started(command, "--world-size", "2", "--metrics", "127.0.0.1:0")
    with urllib.request.urlopen(said["metrics"], timeout=20) as answer:
        text = answer.read().decode()
    assert "softs_fast_up 1\n" in text
    assert "softs_fast_coordinator_open 0\n" in text
    assert command.end(process)[0] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "give --world-size N, or --min-workers N and --max-workers N"),
        (
            ["--world-size", "2", "--min-workers", "2"],
            "give --world-size N, or --min-workers N and --max-workers N",
        ),
        (["--min-workers", "4", "--max-workers", "2"], "max_workers"),
        (["--world-size", "3", "--multiple-of", "2"], "no job has 3 to 3 members in multiples of 2"),
        (["--world-size", "2", "--listen", "0.0.0.0:0"], "without TLS"),
        (["--world-size", "2", "--listen", "softs://a,b/job"], "expected one host, got a:29401 and b:29401"),
        (
            ["--world-size", "2", "--listen", "softs://a/one", "--job", "two"],
            "job 'two' contradicts 'one' of the place",
        ),
        (["--world-size", "2", "--tls-cert", "c.pem"], "a certificate needs its key"),
        (["--world-size", "2", "--metrics", "0.0.0.0:0"], "page of metrics at 0.0.0.0:0 is reachable"),
    ],
)
def test_options_that_cannot_be(run: Run, options: list[str], text: str) -> None:
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    status, out, errors = run("coordinator", "run", "--log-level", "error", *listen, *options)
    assert (status, out) == (1, "")
    assert text in errors
    assert errors.count("\n") == 1


def test_a_second_coordinator_at_the_address(command: Command) -> None:
    process, said = started(command, "--world-size", "2")
    status, _, errors = command.run(
        "coordinator", "run", "--world-size", "2", "--listen", said["coordinator"]
    )
    assert status == 1
    assert f"cannot listen at {said['coordinator']}: another process does" in errors
    assert command.end(process)[0] == 0


def test_files_that_cannot_be_used(command: Command, tmp_path: Path) -> None:
    """Looked at after gRPC has begun, which keeps descriptors in its process."""
    file = tmp_path / "state"
    process, _ = started(command, "--world-size", "2", "--state", str(file))
    again = ["coordinator", "run", "--log-level", "error", "--world-size", "2", "--listen", "127.0.0.1:0"]
    for options, text in (
        (["--state", str(file)], f"is in use by process {process.pid};"),
        (["--state", "/nowhere/at/all"], "No such file"),
        (["--token-file", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
    ):
        status, out, errors = command.run(*again, *options)
        assert (status, out) == (1, "")
        assert text in errors
        assert errors.count("\n") == 1
    assert command.end(process)[0] == 0
    file.write_bytes(file.read_bytes()[:-1])
    process, _ = started(command, "--world-size", "2", "--state", str(file), "--job", "job")
    assert command.end(process)[0] == 0


def test_without_grpc_the_extra_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('No module named grpc')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    for words in (["run", "--world-size", "2"], ["status", "127.0.0.1:1"]):
        status, out, errors = command.run("coordinator", *words, PYTHONPATH=path)
        assert (status, out) == (1, "")
        assert "pip install 'softs-fast[grpc]'" in errors
        assert errors.count("\n") == 1


def test_a_status_as_text() -> None:
    status = Status(
        name="mine\x1b",
        phase="fenced",
        reason="waiting for seat 1",
        since_s=300.0,
        boot=1,
        epoch=4,
        size=2,
        seats=(SeatStatus(0, "w0", "h:1", "ready", 7), SeatStatus(None, "w9", "", "spare", 0)),
        spread=0,
        fences=tuple(Fence(1, n, "gone", 1, f"number {n}", n == 3) for n in range(1, 8)),
        n_fences=(FenceCount("gone", 7),),
        table_s=0.1,
        checkpoint=Completed(2, 40, "/p"),
    )
    assert render(status).splitlines() == [
        'job "mine\\x1b" is fenced for 5 min, epoch 4, 2 members',
        "waiting for seat 1",
        "",
        "SEAT   WORKER  ADDRESS  STATE  STEP",
        "0      w0      h:1      ready     7",
        "spare  w9      -        spare     0",
        "",
        "last fences, the newest last:",
        "  epoch 3, gone (planned): number 3",
        *(f"  epoch {n}, gone: number {n}" for n in range(4, 8)),
        "",
        "last complete checkpoint: step 40 of epoch 2, /p",
    ]


def test_a_training_on_live_samples_as_text() -> None:
    status = Status(
        name="digits",
        phase="open",
        reason="in step 41",
        since_s=3.0,
        boot=1,
        epoch=4,
        size=1,
        seats=(SeatStatus(0, "w0", "h:1", "member", 41, 0.376),),
        spread=0,
        fences=(),
        n_fences=(),
        table_s=0.1,
        checkpoint=None,
        samples_per_s=1234.5,
        starvation=0.376,
        saved=Saved(40, 12.34, 0.82),
    )
    assert render(status).splitlines() == [
        'job "digits" is open for 3.0 s, epoch 4, 1 member',
        "in step 41",
        "1,234 samples/s; steps wait for samples for 38% of the time",
        "last checkpoint: step 40, written 12.3 s ago, in 0.8 s",
        "",
        "SEAT  WORKER  ADDRESS  STATE   STEP  STARVED",
        "0     w0      h:1      member    41      38%",
    ]
