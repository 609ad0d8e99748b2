"""What a session makes of one connection: without a coordinator."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
from softs_fast.coordination.job.events import End
from softs_fast.coordination.job.messages import Hello, ToWorker, Welcome
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.coordination.session.session import Session
from softs_fast.coordination.wire.formats import TO_WORKER
from softs_fast.errors import ConfigError, PeerLost, SoftsError
from softs_fast.trust import Address, UnknownHostError


class Listener:
    """A listener with a defect."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.ends: list[SoftsError] = []

    def hello(self) -> Hello:
        return Hello("job", "w0", 1)

    def received(self, message: ToWorker) -> None:
        raise self.error

    def lost(self, text: str, is_warning: bool) -> None:
        raise AssertionError("it must not connect again")

    def ended(self, error: SoftsError) -> None:
        self.ends.append(error)


@pytest.mark.parametrize("error", [RuntimeError("a defect of an engine"), SystemExit(2)], ids=repr)
def test_code_that_raises_while_it_is_told_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Else its thread would end without a word, and the worker would wait for epochs for ever."""
    listener = Listener(error)
    session = Session("127.0.0.1:1", listener)
    said = [TO_WORKER.encode(Welcome(1, 0))]
    monkeypatch.setattr(session, "_connect", lambda: SimpleNamespace(call=said, close=lambda: None))
    session._run()
    [end] = listener.ends
    assert "taking a Welcome of the coordinator failed" in str(end)
    assert end.__cause__ is error
    assert type(error).__name__ in str(end)


def test_each_attempt_takes_the_next_host() -> None:
    session = Session("softs://127.0.0.1:1,127.0.0.1:2", Listener(RuntimeError()))
    asked = []
    for _ in range(3):
        end = session._serve()
        assert session._address in str(end.error)
        asked.append(session._address)
    assert asked == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"]


def test_a_client_asks_the_next_host_after_one_that_gives_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (f"127.0.0.1:{silent.getsockname()[1]}" for silent in (one, two))
        with CoordinatorClient(f"softs://{first},{second}", timeout_s=0.1) as client:
            for address in (first, second):
                with pytest.raises(PeerLost, match=f"coordinator at {address}"):
                    client.administer(End("over"))
            # What changes nothing is asked of each.
            for ask in (client.status, lambda: next(client.watch())):
                with pytest.raises(PeerLost, match=f"coordinator at {first}.*; coordinator at {second}"):
                    ask()


def test_the_own_address_is_known_while_the_name_of_the_coordinator_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server may be away for a moment: that ends no worker that is connected."""
    session = Session("localhost:1", Listener(RuntimeError()))
    session._connect().close()

    def unknown(*arguments: Any) -> Any:
        raise UnknownHostError("no such name")

    monkeypatch.setattr(Address, "parse", unknown)
    assert session.own_host in ("127.0.0.1", "::1")
    with pytest.raises(ConfigError, match="no such name"):
        _ = Session("127.0.0.1:1", Listener(RuntimeError())).own_host
