"""What sessions and clients make of connections, of hosts that do not answer, and of threads that share them."""

from __future__ import annotations

import itertools
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
from own_coordinators import OwnCoordinators
from waiting import free_ports

from softs_fast.coordination.job.events import End
from softs_fast.coordination.job.messages import Hello, ToWorker, Welcome
from softs_fast.coordination.session import session as session_module
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.coordination.session.session import Session
from softs_fast.coordination.wire.formats import TO_WORKER
from softs_fast.coordination.wire.requests import UnregisterWorkerRequest
from softs_fast.errors import ConfigError, PeerLost, SoftsError
from softs_fast.trust import Address, UnknownHostError


class Listener:
    """A listener with a defect."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.ends: list[SoftsError] = []
        self.losses: list[str] | None = None

    def hello(self) -> Hello:
        return Hello("job", "w0", 1)

    def received(self, message: ToWorker) -> None:
        raise self.error

    def lost(self, text: str, is_warning: bool) -> None:
        if self.losses is None:
            raise AssertionError("it must not connect again")
        self.losses.append(text)

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


def test_each_attempt_takes_the_next_host_and_all_are_named_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    listener = Listener(RuntimeError())
    listener.losses = []
    session = Session("softs://127.0.0.1:1,not.yet.invalid:2", listener, limit_s=7.0)
    session._run()
    one, both = listener.losses
    assert "no coordinator answers at 127.0.0.1:1: " in one
    assert "not.yet.invalid" not in one
    assert both.startswith(f"{one}; address of coordinator 'not.yet.invalid:2': ")
    [end] = listener.ends
    assert "no coordinator answers at 127.0.0.1:1: " in str(end)
    assert "; address of coordinator 'not.yet.invalid:2': " in str(end)
    with pytest.raises(
        PeerLost, match=r"at 127\.0\.0\.1:1 or not\.yet\.invalid:2 now: no coordinator answers"
    ):
        session.request(UnregisterWorkerRequest("w0"), 1.0)


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


def test_a_client_takes_the_host_that_answers_and_none_once_it_is_closed(own: OwnCoordinators) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = CoordinatorClient(f"softs://127.0.0.1:{silent.getsockname()[1]},{own.serve()},127.0.0.1:1")
    assert client.administer(End("over"))
    client.close()
    for _ in range(2):
        with pytest.raises(PeerLost, match="was closed"):
            client.administer(End("over"))


def test_a_host_that_is_there_again_answers_at_once(own: OwnCoordinators) -> None:
    """As when the coordinator moves to a host that has refused the client a moment ago."""
    first = f"127.0.0.1:{free_ports()[0]}"
    second = own.serve()
    with CoordinatorClient(f"softs://{first},{second}") as client:
        client.status()
        own.serve(listen=first)
        own.stop(second)
        assert client.status().name == "j"


def test_threads_that_share_a_client_see_no_channel_that_another_one_has_closed() -> None:
    """Each call without an answer has the next one change the host, while calls of other threads are under way."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (f"127.0.0.1:{silent.getsockname()[1]}" for silent in (one, two))
        client = CoordinatorClient(f"softs://{first},{second}", timeout_s=0.005)
        ends: list[str] = []

        def ask() -> None:
            for _ in range(40):
                try:
                    client.administer(End("over"))
                except Exception as error:
                    ends.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        for call in (lambda: client.administer(End("over")), lambda: next(client.watch())):
            with pytest.raises(PeerLost):
                call()
    assert len(ends) == 240
    late = {f"PeerLost: coordinator at {host}: Deadline Exceeded" for host in (first, second)}
    assert set(ends) <= late


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
