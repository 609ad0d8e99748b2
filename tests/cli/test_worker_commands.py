"""``softs-fast worker`` and ``softs-fast run``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import factories
import pytest
from segments import made_by, sweep_until
from shell import Command, Run
from waiting import eventually, free_ports

import softs_fast as sf
from softs_fast.fleet.factory import NamedFactory

FOLDER = str(Path(factories.__file__).parent)
# The command finds modules of its folder; tests are run elsewhere.
PATH = {"PYTHONPATH": os.pathsep.join([FOLDER, os.environ.get("PYTHONPATH", "")])}
TRAIN = """
import os, sys, time
import factories
import softs_fast as sf

if __name__ == "__main__":
    with sf.StudentClient(0, 4, factories.CONFIG) as student:
        student.hello()
        student.set_model("m")
        sample = student.request_sample(timeout_ms=20_000)
        # Its tensors would need torch, which takes seconds to import.
        print("sample of", int.from_bytes(sample.data[:8], "little"), flush=True)
        student.release_slot(sample.slot_id)
        if sys.argv[1] == "waits":
            try:
                print("of", os.getpid(), flush=True)
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                time.sleep(0.5)
                print("saved", flush=True)
                sys.exit(1)
        if sys.argv[1] == "stops":
            student.stop_workers()
            sys.exit(7)
    sys.exit(int(sys.argv[1]))
"""


def script(folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(TRAIN)
    return str(path)


def test_workers_serve_a_broker_until_the_leader_stops_them(
    command: Command, frontend: str, backend: str
) -> None:
    ends = sf.EndpointConfig(frontend, backend)
    control, control_pub = f"{frontend}c", f"{frontend}p"
    with (
        sf.Broker(ends, control_endpoint=control, control_pub_endpoint=control_pub),
        sf.StudentClient(0, 2, factories.CONFIG, frontend, control, control_pub) as student,
    ):
        named = ["--backend", backend, "--control-pub", control_pub, "--workers", "2"]
        workers = command.start("worker", "factories:make_worker", *named, **PATH)
        assert workers.stdout is not None
        assert workers.stdout.readline() == "2 workers serve\n"
        student.hello()
        student.set_model("m")
        sample = student.request_sample(timeout_ms=20_000)
        assert sample.tensors()["pid"].item() != workers.pid
        student.release_slot(sample.slot_id)
        student.stop_workers()
        out, errors = workers.communicate(timeout=40)
        # A machine that is busy takes seconds to start them.
        errors = re.sub(r"\d of 2 workers serve after \d+ s\n", "", errors)
        assert (workers.returncode, out, errors) == (0, "", "")


def test_the_variables_may_name_hosts_of_which_the_first_is_gone(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("FRONTEND", "BACKEND", "CONTROL", "CONTROL_PUB")
    ports = free_ports(8)
    pairs = [f"tcp://127.0.0.1:{ports[at]},127.0.0.1:{ports[at + 1]}" for at in range(0, 8, 2)]
    for name, pair in zip(names, pairs, strict=True):
        monkeypatch.setenv(f"SOFTS_FAST_{name}", pair)
    ends, control = (
        sf.EndpointConfig(*pairs[:2]),
        {"control_endpoint": pairs[2], "control_pub_endpoint": pairs[3]},
    )
    with contextlib.ExitStack() as stack:
        first = sf.Broker(ends, **control)
        with first:
            stack.enter_context(sf.Broker(ends, **control))
        student = stack.enter_context(sf.StudentClient(0, 2, factories.CONFIG))
        workers = command.start("worker", "factories:make_worker", **PATH)
        assert workers.stdout is not None
        assert workers.stdout.readline() == "1 worker serves\n"
        student.hello()
        student.set_model("m")
        student.release_slot(student.request_sample(timeout_ms=20_000).slot_id)
        status, out, _ = run("top", "--once")
        assert status == 0
        assert out.startswith(f"softs-fast top  {pairs[0]}  ")
        assert ", 1 supplier, 1 lane;" in out
        student.stop_workers()
        _, errors = workers.communicate(timeout=40)
        assert workers.returncode == 0, errors
        # A fleet has a broker of its own.
        with sf.Fleet(factories.make_supplier) as fleet:
            assert fleet.endpoints.frontend != pairs[0]
            assert fleet.states() == {"worker 0": "serving"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_a_signal(command: Command, frontend: str, backend: str, number: int) -> None:
    with sf.Broker(sf.EndpointConfig(frontend, backend)) as broker:
        # The environment names the broker.
        workers = command.start("worker", "factories:make_supplier", SOFTS_FAST_BACKEND=backend, **PATH)
        assert workers.stdout is not None
        assert workers.stdout.readline() == "1 worker serves\n"
        assert broker.stats.connected_suppliers == 1
        status, _, errors = command.end(workers, number)
        assert status == 0, errors


def test_a_command_runs_beside_a_fleet_and_gives_its_status(command: Command, tmp_path: Path) -> None:
    arguments = ["run", "--factory", "factories:make_worker", "--workers", "2"]
    ended = command.run(*arguments, "--", sys.executable, script(tmp_path), "7", **PATH)
    assert ended[0] == 7, ended
    assert re.fullmatch(r"sample of \d+\n", ended[1])


def test_a_command_gets_samples_of_workers_of_another_host(command: Command, tmp_path: Path) -> None:
    link = ["--listen", "127.0.0.1:0"]
    host = command.start("run", "--factory", "factories:make_worker", *link, **PATH)
    assert host.stdout is not None
    address = host.stdout.readline().split()[-1]
    ended = command.run("run", "--connect", address, "--", sys.executable, script(tmp_path), "stops", **PATH)
    assert ended[0] == 7, ended
    assert re.fullmatch(r"sample of \d+\n", ended[1])
    assert re.search(r"host link of \S+ connects to 127\.0\.0\.1:\d+", ended[2])
    # The student has stopped its workers.
    _, errors = host.communicate(timeout=40)
    assert host.returncode == 0, errors


def test_a_command_may_save_its_work_at_ctrl_c(command: Command, tmp_path: Path) -> None:
    run = ["run", "--factory", "factories:make_worker", "--", sys.executable, script(tmp_path), "waits"]
    process = command.start(*run, **PATH)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    status, out, errors = command.end(process, signal.SIGINT)
    assert (status, out) == (130, "saved\n"), errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run(command: Command, tmp_path: Path, number: int) -> None:
    run = ["run", "--factory", "factories:make_worker", "--", sys.executable, script(tmp_path), "waits"]
    process = command.start(*run, **PATH)
    assert process.stdout is not None
    pids = {int(process.stdout.readline().split()[-1]) for _ in range(2)}
    os.kill(process.pid, number)
    if number == signal.SIGKILL:
        # The command goes on, as a training would.
        eventually(lambda: sum(Path(f"/proc/{pid}").exists() for pid in pids) == 1, "the worker has ended")
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=40)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all processes have ended")
    sweep_until(lambda: made_by(pids) == [])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["worker", "factories"], "'factories' is not of the form package.module:function"),
        (["worker", "no_such_module:f"], "cannot import 'no_such_module': No module named 'no_such_module'"),
        (["worker", "factories:f"], "'factories' has no 'f'"),
        (["worker", "factories:CONFIG"], "'factories:CONFIG' is a BatchConfig; it must be a function"),
        (["run", "--factory", "factories:make_worker"], "there is no command to run"),
        (["run", "--listen", "127.0.0.1:0"], "there is no command to run"),
        (["run", "--", "true"], "there are no workers: give --factory, or --listen or --connect"),
        (["run", "--connect", "192.0.2.1", "--", "true"], "reachable from other machines without TLS"),
    ],
)
def test_what_cannot_be_says_why(run: Run, arguments: list[str], error: str) -> None:
    status, out, errors = run(*arguments)
    assert (status, out) == (1, "")
    assert error in errors


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["factories:make_worker", "--", "/no/such"], "cannot run '/no/such'"),
        (["factories:raise_an_error", "--", "true"], "RuntimeError: no weights in /models"),
    ],
)
def test_what_cannot_begin_says_why(command: Command, arguments: list[str], error: str) -> None:
    status, out, errors = command.run("run", "--factory", *arguments, **PATH)
    assert (status, out) == (1, "")
    assert error in errors


def test_a_factory_of_a_class_is_found() -> None:
    assert NamedFactory("softs_fast:BatchConfig.from_dict").load() == sf.BatchConfig.from_dict
    assert str(NamedFactory("a:b")) == "a:b"
