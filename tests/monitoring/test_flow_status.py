"""How flows are found: their sockets, those that were left behind, and answers that are none."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from softs_fast._core import this_process
from softs_fast.errors import ConfigError
from softs_fast.monitoring.flow_status import flow_folder, flows, socket_name

STATUS: dict[str, Any] = {
    "name": "ppo:make_flow",
    "pid": 4711,
    "open_s": 12.0,
    "quiet_s": 0.5,
    "steps": 3,
    "rows": 64,
    "n_bytes": 4096,
    "age": 1,
    "doing": "waits for workers",
    "doing_s": 0.25,
    "functions": [{"name": "gen.generate", "ready": 2, "needed": 32, "running": 1, "seconds": 0.5}],
    "workers": [
        {"worker": 1, "pid": 4712, "inside": "gen.generate", "ticket": 9, "seconds": 0.4, "state": ""}
    ],
}


@pytest.fixture
def folder(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sockets, of this test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    found = flow_folder()
    assert found.parent == short_path
    return found


@contextmanager
def answering(path: Path, *answers: bytes) -> Iterator[None]:
    """Listen at a path, and give each that asks one answer."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def run() -> None:
            for answer in answers:
                link, _ = listener.accept()
                with link:
                    link.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


def test_there_may_be_no_flow(folder: Path) -> None:
    assert flows() == ()
    assert not folder.exists()


def test_a_flow_says_what_it_does(folder: Path) -> None:
    with answering(folder / socket_name(0), json.dumps(STATUS).encode()):
        (seen,) = flows()
    assert (seen.name, seen.pid, seen.steps, seen.rows, seen.age) == ("ppo:make_flow", 4711, 3, 64, 1)
    assert (seen.doing, seen.doing_s, seen.error) == ("waits for workers", 0.25, "")
    assert seen.functions[0].needed == 32
    assert (seen.workers[0].inside, seen.workers[0].ticket) == ("gen.generate", 9)


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[]", b"x" * ((1 << 20) + 2)]
    + [json.dumps(STATUS | changes).encode() for changes in ({"steps": "many"}, {"open_s": 1e999})]
    + [json.dumps({name: STATUS[name] for name in STATUS if name != key}).encode() for key in STATUS],
)
def test_what_is_no_status_is_an_error_in_words(folder: Path, answer: bytes) -> None:
    path = folder / "77-1-2-0"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def run() -> None:
            link, _ = listener.accept()
            with link:
                try:
                    link.sendall(answer)
                except BrokenPipeError:
                    return

        thread = threading.Thread(target=run)
        thread.start()
        (seen,) = flows()
        thread.join()
    assert seen.error.startswith("it cannot be asked: ")
    assert seen.pid == 77


def test_a_socket_that_was_left_behind_is_removed(folder: Path) -> None:
    with answering(folder / "77-1-2-0"):
        pass  # the process has ended without a word
    with answering(folder / "78-1-2-0", json.dumps(STATUS).encode()):
        assert [one.pid for one in flows()] == [4711]
        assert [path.name for path in folder.iterdir()] == ["78-1-2-0"]


def test_a_process_that_has_ended_is_not_waited_for_though_a_fork_holds_its_socket(folder: Path) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / f"{child}-1-0-0"))
        listener.listen()
        assert flows(timeout_s=0.05) == ()
        assert not list(folder.iterdir())


def test_a_process_that_has_the_number_of_one_that_has_ended_is_another_one(folder: Path) -> None:
    pid, started, namespace = this_process()
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:  # which a fork of the first one holds
        listener.bind(str(folder / f"{pid}-{started - 1}-{namespace}-0"))
        listener.listen()
        assert flows(timeout_s=0.05) == ()
        assert not list(folder.iterdir())


def test_a_flow_that_holds_the_gil_is_listed_with_that(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    path = folder / socket_name(0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        (seen,) = flows(timeout_s=0.05)
    assert "no answer within 0.05 s" in seen.error
    assert path.exists()


def test_other_files_are_left_alone(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    names = {"new-77-1-2-0", "notes", "77-1-2-x", "-1", "77-0"}
    for name in names:
        (folder / name).write_text("")
    assert flows() == ()
    assert {path.name for path in folder.iterdir()} == names


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        flows()
