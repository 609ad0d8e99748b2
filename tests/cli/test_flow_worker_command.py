"""`softs-fast flow worker`: its arguments, and the errors before it has joined. tests/dataflow/hosts runs it."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softs_fast.cli import main
from softs_fast.cli.flow import argument
from softs_fast.dataflow.process import by_hand
from softs_fast.errors import PeerLost
from softs_fast.trust import Der, Place, UnknownHostError, write_token

SHOWN: Der = (b"", [], [])


def test_arguments_of_the_function_are_numbers_words_of_json_or_text() -> None:
    for text, value in (
        ("n=3", 3),
        ("n=0.5", 0.5),
        ("n=true", True),
        ("n=null", None),
        ("n=ppo", "ppo"),
        ("n=a=b", "a=b"),
        ("n=[1]", "[1]"),
        ('n="3"', "3"),
        ("n=", ""),
    ):
        found = argument(text)
        assert found == ("n", value)
        assert type(found[1]) is type(value)
    for text in ("n", "=3", "a b=3"):
        with pytest.raises(argparse.ArgumentTypeError, match="need NAME=VALUE"):
            argument(text)


def test_errors_before_it_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / "token"
    write_token(token)
    rest = ["--token-file", str(token), "--connect-timeout", "0.01", "host_flow:make_flow"]
    nowhere = "tcp://127.0.0.1:9"
    assert main(["flow", "worker", nowhere, *rest]) == 1
    assert "this worker has no number; give --rank N" in capsys.readouterr().err
    assert main(["flow", "worker", "ipc://*", *rest, "--rank", "0"]) == 1
    assert "expected tcp://HOST:PORT" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert main(["flow", "worker", nowhere, *rest]) == 1
    assert (
        "worker 2 has waited 0.01 s for the master: no master at tcp://127.0.0.1:9" in capsys.readouterr().err
    )
    token.chmod(0o644)
    assert main(["flow", "worker", nowhere, *rest]) == 1
    assert "must be a file of this user with mode 0600" in capsys.readouterr().err
    assert main(["flow", "worker", nowhere, "host_flow:make_flow"]) == 1
    assert "give --token-file, token_file=, softs:// with ?token_file=" in capsys.readouterr().err
    token.chmod(0o600)
    place = f"softs://127.0.0.1:8,127.0.0.1:9/ppo?token_file={token}"
    assert main(["flow", "worker", place, "--connect-timeout", "0.01", "host_flow:make_flow"]) == 1
    assert "0.01 s for the master: no master at tcp://127.0.0.1:8" in capsys.readouterr().err


def test_each_attempt_takes_the_next_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def join(endpoint: str, credentials: Der, seat: int, **limits: Any) -> str:
        asked.append(endpoint)
        if endpoint != "tcp://127.0.0.1:9":
            raise PeerLost("no master")
        return "joined"

    monkeypatch.setattr(by_hand, "join", join)
    # No master at the first host, and no name server that knows the second: neither keeps the worker from the third.
    place = Place(("127.0.0.1:8", "a..b:1", "127.0.0.1:9"))
    there, joined = by_hand._connected(place, SHOWN, 0, 300.0)
    assert (there.port, joined) == (9, "joined")
    assert asked == ["tcp://127.0.0.1:8", "tcp://127.0.0.1:9"]
    with pytest.raises(UnknownHostError):
        by_hand._connected(Place(("a..b:1",)), SHOWN, 0, 300.0)
    with pytest.raises(PeerLost, match="no master"):
        by_hand._connected(Place.parse("tcp://*:4711", "master", scheme="tcp://"), SHOWN, 0, 0.0)
    assert asked[-1] == "tcp://*:4711"


def test_the_error_names_each_host_that_was_tried_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)

    def join(endpoint: str, credentials: Der, seat: int, **limits: Any) -> str:
        raise PeerLost(f"no master at {endpoint} at {clock.now_s:.1f} s")

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    monkeypatch.setattr(by_hand, "join", join)
    monkeypatch.setattr(by_hand, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep))
    with pytest.raises(PeerLost) as raised:
        by_hand._connected(Place(("127.0.0.1:8", "127.0.0.1:9")), SHOWN, 5, 0.5)
    assert str(raised.value) == (
        "worker 5 has waited 0.5 s for the master: "
        "no master at tcp://127.0.0.1:8 at 0.3 s; no master at tcp://127.0.0.1:9 at 0.1 s"
    )
