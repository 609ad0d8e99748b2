"""``softs-fast broker``."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from market import Market
from shell import Command, Run

import softs_fast as sf


def started(command: Command, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A broker that has said where it is."""
    process = command.start("broker", *arguments)
    assert process.stdout is not None
    said = {}
    for _ in range(2 + ("--metrics" in arguments) + 2 * ("--control" in arguments)):
        line = process.stdout.readline()
        if not line:
            pytest.fail(process.communicate()[1])
        key, _, value = line.strip().partition(" ")
        said[key] = value.strip()
    return process, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_until_a_signal_comes(
    command: Command, frontend: str, backend: str, short_path: Path, number: int
) -> None:
    process, said = started(command, "--frontend", frontend, "--backend", backend, "--log-level", "error")
    assert said == {"frontend": frontend, "backend": backend}
    with (
        sf.Supplier(lambda product: b"x" * 64, ["p"], backend, sf.ShmMedium, 64),
        sf.Client(frontend, sf.ShmMedium, 64, 2) as client,
    ):
        assert client.request_sample("p", timeout_ms=20_000) is not None
    assert command.end(process, number) == (0, "", "")
    assert not list(short_path.iterdir()), "it removes its sockets"


def test_a_signal_that_nohup_ignores_stays_ignored(command: Command, frontend: str, backend: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, _ = started(command, "--frontend", frontend, "--backend", backend)
    finally:
        signal.signal(signal.SIGHUP, before)
    status = Path(f"/proc/{process.pid}/status").read_text()
    (ignored,) = re.findall(r"^SigIgn:\t(\w+)$", status, re.MULTILINE)
    assert int(ignored, 16) & 1 << signal.SIGHUP - 1
    assert command.end(process)[0] == 0


def test_it_serves_the_control_channel_too(command: Command, frontend: str, backend: str) -> None:
    ends = ["--control", f"{frontend}_control", "--control-pub", "tcp://127.0.0.1:*"]
    process, said = started(command, "--frontend", frontend, "--backend", backend, *ends)
    assert said["control"] == f"{frontend}_control"
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", said["control_pub"])
    config = sf.BatchConfig([sf.TensorSpec("x", (8,), "uint8")])
    with (
        sf.Worker(lambda model_id, _: model_id.encode().ljust(8), 8, backend, said["control_pub"]),
        sf.StudentClient(0, 2, config, frontend, said["control"], said["control_pub"]) as student,
    ):
        student.set_model("teacher")
        sample = student.request_sample(timeout_ms=20_000)
        assert sample is not None
        assert sample.data == b"teacher "
        student.release_slot(sample.slot_id)
    assert command.end(process)[0] == 0


def test_wildcards_are_resolved(command: Command, run: Run) -> None:
    process, said = started(command, "--frontend", "tcp://127.0.0.1:*", "--backend", "tcp://127.0.0.1:*")
    assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", said["frontend"])
    status, out, _ = run("status", said["frontend"])
    assert status == 0
    assert f"broker     {said['frontend']}" in out
    assert command.end(process)[0] == 0


def test_an_endpoint_in_use(run: Run, market: Market) -> None:
    market.broker()
    status, out, errors = run("broker", "--frontend", market.frontend, "--backend", market.backend)
    assert (status, out) == (1, "")
    assert errors.startswith("softs-fast: ")
    assert "in use" in errors
    assert errors.count("\n") == 1


def test_nothing_is_reachable_from_other_machines_unless_asked_for(
    command: Command, run: Run, backend: str
) -> None:
    everywhere = ["--frontend", "tcp://0.0.0.0:*", "--backend", backend]
    status, _, errors = run("broker", *everywhere)
    assert status == 1
    assert "allow_remote" in errors
    process, said = started(command, *everywhere, "--allow-insecure")
    assert said["frontend"].startswith("tcp://0.0.0.0:")
    assert command.end(process)[0] == 0


def test_metrics(command: Command, frontend: str, backend: str) -> None:
    ends = ["--frontend", frontend, "--backend", backend]
    process, said = started(command, *ends, "--metrics", "127.0.0.1:0")
    with urllib.request.urlopen(said["metrics"], timeout=20) as answer:
        assert "\nsofts_fast_clients 0\n" in answer.read().decode()
    assert command.end(process, signal.SIGTERM)[0] == 0


def test_an_address_that_metrics_cannot_have(
    command: Command, frontend: str, backend: str, short_path: Path
) -> None:
    ends = ["--frontend", frontend, "--backend", backend]
    status, out, errors = command.run("broker", *ends, "--metrics", "0.0.0.0:0")
    assert (status, out) == (1, "")
    assert "page of metrics at 0.0.0.0:0 is reachable" in errors
    assert errors.count("\n") == 1, "there was no broker, which would have logged"
    assert not list(short_path.iterdir())


def test_a_port_for_metrics_that_is_in_use(run: Run, frontend: str, backend: str, short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ends = ["--frontend", frontend, "--backend", backend]
        status, out, errors = run("broker", *ends, "--metrics", f"127.0.0.1:{port}")
    assert (status, out) == (1, ""), "it prints where it is once all of it is there"
    assert f"softs-fast: cannot serve metrics at 127.0.0.1:{port}" in errors
    assert not list(short_path.iterdir()), "the broker is gone, too"
