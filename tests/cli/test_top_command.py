"""``softs-fast top`` in a terminal and without one."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from market import Market
from shell import Command, Run
from waiting import WATCHDOG_S, eventually

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Screen:
    """A terminal of a given size in which the command runs."""

    def __init__(self, columns: int, lines: int, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._text = ""
        # A read may end within a character.
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "softs_fast", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size; the kernel tells the processes in front only, so the command is told here."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def wait_for(self, condition: Callable[[str], object]) -> str:
        """Read until the text so far meets a condition; returns it, and begins anew."""

        def holds() -> object:
            if not (found := condition(self._text)) and select.select([self._master], [], [], 0.1)[0]:
                self._text += self._decode(os.read(self._master, 65536))
            return found

        eventually(holds, lambda: self._text, every_s=0)
        text, self._text = self._text, ""
        return text

    def end(self, number: int) -> str:
        """Send a signal; everything that was still written."""
        self.process.send_signal(number)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(self._master, 65536):
                self._text += self._decode(chunk)
        self.process.wait(timeout=WATCHDOG_S)
        return self._text

    def hang_up(self) -> None:
        """Close the terminal, as its window does."""
        os.close(self._master)
        self._master = -1
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Screen]]:
    """Open terminals that are closed after the test, in which the flows of other tests are not asked.

    A signal that arrives as the socket of a question is closed leaves it open, with a warning.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    screens: list[Screen] = []

    def start(*arguments: object) -> Screen:
        screens.append(Screen(*arguments))  # type: ignore[arg-type]
        return screens[-1]

    yield start
    for one in screens:
        one.close()


def frames(text: str) -> list[list[str]]:
    """The screens that were shown completely, as lines."""
    parts = [part.split("\x1b[J")[0] for part in text.split("\x1b[H")[1:]]
    return [part.replace("\x1b[K", "").replace("\r", "").split("\n") for part in parts[:-1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_shows_the_market_and_is_given_back(
    busy_market: Market, screen: Callable[..., Screen], number: int
) -> None:
    top = screen(100, 30, "top", busy_market.frontend, "--interval", "0.05")
    text = top.wait_for(lambda text: len(frames(text)) >= 2)
    assert text.startswith(ENTER)
    first = frames(text)[0]
    assert first[0].startswith("softs-fast top  ipc://")
    assert first[1].startswith("1 client, 1 supplier")
    rest = top.end(number)
    assert rest.endswith("\x1b[?25h" + LEAVE)
    assert "Traceback" not in rest
    assert top.process.returncode == 0


def test_a_terminal_that_is_gone(busy_market: Market, screen: Callable[..., Screen]) -> None:
    top = screen(100, 30, "top", busy_market.frontend, "--interval", "0.05")
    top.wait_for(lambda text: "1 client" in text)
    top.hang_up()
    assert top.process.wait(timeout=WATCHDOG_S) in (0, 1), "1: it wrote before it heard the signal"


def test_a_small_terminal_that_grows(busy_market: Market, screen: Callable[..., Screen]) -> None:
    # An interval that never ends: only the change of the size can make it draw again.
    top = screen(20, 5, "top", busy_market.frontend, "--interval", "80000")
    small = top.wait_for(lambda text: "\x1b[J" in text)
    lines = small.split("\x1b[H")[1].split("\x1b[J")[0].replace("\x1b[K", "").replace("\r", "").split("\n")
    assert len(lines) <= 5
    assert max(map(len, lines)) == 20
    top.resize(90, 30)
    large = top.wait_for(lambda text: "\x1b[J" in text)
    assert "SUPPLIER" in large
    assert top.end(signal.SIGINT).endswith(LEAVE)


OTHER_THREAD = """
import select, signal, sys, threading, time
from softs_fast.cli.terminal import Terminal

# The other thread runs only when this one has released the interpreter: in `select`.
sys.setswitchinterval(1000.0)
entering = threading.Event()
wait = select.select


def entered(*arguments):
    entering.set()
    return wait(*arguments)


def send():
    entering.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGWINCH)


with Terminal() as terminal:
    threading.Thread(target=send, daemon=True).start()
    select.select = entered
    print(terminal.pause(time.monotonic() + 10_000))
"""


def test_a_change_of_the_size_is_seen_whatever_thread_the_kernel_tells() -> None:
    """The handler would run when the main thread has waited to the end."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_THREAD], capture_output=True, text=True, check=True, timeout=WATCHDOG_S
    )
    assert "True" in done.stdout


def test_a_terminal_without_a_size(busy_market: Market, screen: Callable[..., Screen]) -> None:
    top = screen(0, 0, "top", busy_market.frontend, "--interval", "0.05")
    assert "1 client, 1 supplier" in top.wait_for(lambda text: "\x1b[J" in text)


def test_it_waits_for_a_broker_that_is_gone(market: Market, screen: Callable[..., Screen]) -> None:
    broker = market.broker()
    top = screen(100, 30, "top", market.frontend, "--interval", "0.05")
    top.wait_for(lambda text: "0 clients" in text)
    broker.kill()
    top.wait_for(lambda text: "Trying again." in text)
    market.broker()
    top.wait_for(lambda text: "0 clients" in text)
    top.end(signal.SIGINT)
    assert top.process.returncode == 0


def test_once_is_plain_text(run: Run, busy_market: Market) -> None:
    status, out, errors = run("top", busy_market.frontend, "--once", "--interval", "0.05")
    assert (status, errors) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[1].startswith("1 client, 1 supplier")
    (row,) = [line.split() for line in lines if " sl_" in line]
    assert row[2:4] == ["p1", "0"], "there was an earlier look to compare with"


def test_without_a_terminal_it_is_plain_text_again_and_again(command: Command, busy_market: Market) -> None:
    process = command.start("top", busy_market.frontend, "--interval", "0.01")
    assert process.stdout is not None
    heads = 0
    while heads < 3:
        line = process.stdout.readline()
        assert line
        assert "\x1b" not in line
        heads += line.startswith("softs-fast top")
    status, _, errors = command.end(process)
    assert (status, errors) == (0, "")


def test_a_softs_broker_tells_less(run: Run, market: Market) -> None:
    market.broker("softs")
    status, out, errors = run("top", market.frontend, "--once", "--interval", "0.05")
    assert (status, errors) == (0, "")
    assert "This broker does not list its peers." in out
