"""What all commands have in common: help, versions, statuses, pipes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from market import Market
from shell import Command, Run
from waiting import WATCHDOG_S

import softs_fast

COMMANDS = ["broker", "worker", "run", "status", "top", "bench", "gpu"]


def test_version_and_help(command: Command) -> None:
    assert command.run("--version") == (0, f"softs-fast {softs_fast.__version__}\n", "")
    status, text, errors = command.run("--help")
    assert (status, errors) == (0, "")
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_by_examples(run: Run, name: str) -> None:
    status, text, errors = run(name, "--help")
    assert (status, errors) == (0, "")
    assert f"examples:\n  softs-fast {name}" in text
    assert "{_FRONTEND}" not in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice"),
        (["status", "ipc://x", "--interval", "soon"], "'soon' is not a number"),
        (["status", "ipc://x", "--interval", "nan"], "nan is not between"),
        (["top", "ipc://x", "--interval", "0"], "0 is not between"),
        (["bench", "--sample-bytes", "0"], "0 is not between 1 and"),
        (["bench", "--sample-bytes", "64k"], "'64k' is not a whole number"),
        (["broker", "--max-queue-per-product", "-1"], "-1 is not between"),
        (["broker", "--log-level", "loud"], "invalid choice: 'loud'"),
        (["worker"], "required: MODULE:FUNCTION"),
        (["worker", "a:b", "--workers", "0"], "0 is not between 1 and 1024"),
        (["worker", "a:b", "--gpus", "0,x"], "'0,x' is not a list of devices"),
        (["worker", "a:b", "--gpus", "0,-1"], "0,-1 has a number below 0"),
    ],
)
def test_wrong_arguments(run: Run, arguments: list[str], text: str) -> None:
    status, out, errors = run(*arguments)
    assert (status, out) == (2, "")
    assert text in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["top", "--once"]])
def test_a_dead_endpoint_is_an_error(run: Run, frontend: str, arguments: list[str]) -> None:
    status, out, errors = run(*arguments, frontend)
    assert (status, out) == (1, "")
    assert errors.startswith(f"softs-fast: no statistics from {frontend} within 2 s: no broker at {frontend}")
    assert errors.count("\n") == 1


def test_a_target_of_no_service_is_an_error(run: Run) -> None:
    for target, text in (
        ("localhost", "unknown target 'localhost': expected ipc://PATH"),
        ("https://host:8000/", "the page https://host:8000/ comes without its key"),
    ):
        status, out, errors = run("status", target)
        assert (status, out) == (1, "")
        assert text in errors
    status, _, errors = run("status", "--tls-ca", "ca.pem", "ipc://x")
    assert status == 1
    assert "are for a coordinator" in errors


@pytest.mark.parametrize("name", ["status", "top"])
def test_a_malformed_endpoint_is_an_error(run: Run, name: str) -> None:
    status, out, errors = run(name, "tcp:example")
    assert (status, out) == (1, "")
    assert errors == 'softs-fast: bad endpoint "tcp:example": must start with ipc:// or tcp://\n'


def test_a_reader_that_leaves_ends_the_command_quietly(command: Command, busy_market: Market) -> None:
    for arguments in (
        ["status", busy_market.frontend, "--watch", "--interval", "0.01"],
        ["top", busy_market.frontend, "--interval", "0.01"],
    ):
        process = command.start(*arguments)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=45)
        assert process.returncode == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("arguments", ["--help", "status --help"])
def test_help_into_a_closed_pipe(arguments: str) -> None:
    script = f"{sys.executable} -m softs_fast {arguments} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    # The reader may also leave only after everything was written.
    assert done.stdout in ("0\n", "141\n")
    assert done.stderr == ""


def test_output_that_cannot_be_written(market: Market) -> None:
    market.broker()
    for arguments in (
        "--help",
        f"status {market.frontend} --json --watch",
        f"top {market.frontend} --interval 0.05",
        f"broker --frontend {market.frontend}2 --backend {market.backend}2 --log-level error",
    ):
        text = "softs-fast: cannot write standard output: No space left on device\n"
        assert redirected(arguments, "> /dev/full") == (1, text), arguments


def test_output_that_is_closed(frontend: str, backend: str) -> None:
    text = "softs-fast: standard output is closed; if it is not needed, redirect it to /dev/null\n"
    for arguments in (
        "--version",
        "bench",
        f"broker --frontend {frontend} --backend {backend}",
    ):
        assert redirected(arguments, ">&-") == (1, text), arguments


def redirected(arguments: str, redirection: str) -> tuple[int, str]:
    """Run a command in a shell: status, errors."""
    script = f"{sys.executable} -W error -m softs_fast {arguments} {redirection}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )
    return done.returncode, done.stderr


def test_an_ascii_terminal_gets_escapes_instead_of_an_error(command: Command, market: Market) -> None:
    market.broker()
    market.supplier(patterns=["schön.*"])
    status, out, errors = command.run("status", market.frontend, PYTHONIOENCODING="ascii")
    assert (status, errors) == (0, "")
    assert "sch\\xf6n.*" in out
