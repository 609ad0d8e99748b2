"""What a link asks the native one for, and what it refuses, with a native link that is made up."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_check import check_fork
from token_files import token_file
from waiting import eventually

from softs_fast import ConfigError, EndpointConfig, HostLink, _core
from softs_fast.market import ControlEndpoints
from softs_fast.trust import TlsFiles


class NativeLink:
    """Keeps what it was asked for, and logs what it is told."""

    made: list[NativeLink]

    def __init__(self, *asked: Any) -> None:
        self.asked = asked
        self.did: list[str] = []
        self.endpoint = None if asked[0] is None else asked[0].replace(":0", ":4711")
        self.n_sessions = 2
        self.owes = False
        self.records: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self.made.append(self)

    def next_log(self) -> tuple[int, str] | None:
        return self.records.get()

    def drain(self) -> None:
        self.did.append("drain")

    def stop(self) -> None:
        self.did.append("stop")
        self.records.put(None)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[NativeLink]:
    """The native links that were made."""
    made: list[NativeLink] = []
    monkeypatch.setattr(NativeLink, "made", made, raising=False)
    monkeypatch.setattr(_core, "HostLink", NativeLink)
    for name in ("FRONTEND", "BACKEND", "CONTROL"):
        monkeypatch.delenv(f"SOFTS_FAST_{name}", raising=False)
    return made


def test_ports_and_brokers_that_are_not_named(
    made: list[NativeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    with HostLink(listen="127.0.0.1", connect=["localhost", "[::1]:5"]) as link:
        assert link.address == "127.0.0.1:4700"
        assert link.n_hosts == 2
    monkeypatch.setenv("SOFTS_FAST_FRONTEND", "ipc:///run/f")
    HostLink(connect="127.0.0.1").close()
    others = EndpointConfig("ipc://a", "ipc://b")
    HostLink(others, listen="127.0.0.1:0").close()
    monkeypatch.setenv("SOFTS_FAST_CONTROL", "ipc:///run/c")
    HostLink(EndpointConfig("ipc:///run/f", "ipc://b"), listen="127.0.0.1:0").close()
    HostLink(others, listen="127.0.0.1:0", control_endpoint="ipc://c", connections=4).close()
    backend = EndpointConfig.backend
    assert [native.asked for native in made] == [
        (
            *("tcp://127.0.0.1:4700", ["tcp://localhost:4700", "tcp://[::1]:5"]),
            *(EndpointConfig.frontend, backend, ControlEndpoints.control, None, None),
        ),
        (None, ["tcp://127.0.0.1:4700"], "ipc:///run/f", backend, None, None, None),
        ("tcp://127.0.0.1:0", [], "ipc://a", "ipc://b", None, None, None),
        ("tcp://127.0.0.1:0", [], "ipc:///run/f", "ipc://b", "ipc:///run/c", None, None),
        ("tcp://127.0.0.1:0", [], "ipc://a", "ipc://b", "ipc://c", None, 4),
    ]


def test_a_link_needs_a_peer(made: list[NativeLink]) -> None:
    with pytest.raises(ConfigError, match="give an address to listen at, or those of other hosts"):
        HostLink()
    for connections in (0, 5, -1):
        with pytest.raises(ConfigError, match=f"connections is 1 to 4, not {connections}"):
            HostLink(listen="127.0.0.1", connections=connections)
    assert made == []


@pytest.mark.parametrize(
    "ends", [{"listen": "0.0.0.0"}, {"listen": "192.0.2.1:5"}, {"connect": ["127.0.0.1", "192.0.2.1"]}]
)
def test_a_plain_link_stays_on_loopback(made: list[NativeLink], ends: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"reachable from other machines without TLS; .* --token-file"):
        HostLink(**ends)
    assert made == []


def test_with_a_token_names_are_not_looked_up(made: list[NativeLink], tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    credentials = TlsFiles(token_file=token_file(tmp_path / "token", "a"))
    HostLink(listen="0.0.0.0", connect=["not.yet.invalid"], credentials=credentials).close()
    listen, connect, *_, (key, chain, roots), _ = made[0].asked
    assert (listen, connect) == ("tcp://0.0.0.0:4700", ["tcp://not.yet.invalid:4700"])
    assert [type(key), len(chain), len(roots)] == [bytes, 1, 1]


def test_a_place_has_the_token_file(
    made: list[NativeLink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    file = token_file(tmp_path / "token", "a")
    HostLink(listen=f"softs://0.0.0.0/digits?token_file={file}", connect="softs://[2001:db8::7]").close()
    listen, connect, *_, der, _ = made[0].asked
    assert (listen, connect) == ("tcp://0.0.0.0:4700", ["tcp://[2001:db8::7]:4700"])
    assert der is not None
    monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", str(tmp_path / "not-there"))
    HostLink(listen="127.0.0.1", connect=f"softs://teachers?token_file={file}").close()
    with pytest.raises(ConfigError, match=r"token file '.*token' contradicts 'other' of the place"):
        HostLink(connect=[f"softs://a/job?token_file={file}", "softs://b/job?token_file=other"])


@pytest.mark.parametrize("text", ["", "a b", "teachers:x", "tcp://teachers:1"])
def test_an_address_that_is_malformed(made: list[NativeLink], text: str) -> None:
    for ends in ({"listen": text}, {"connect": [text]}):
        with pytest.raises(ConfigError, match=r"address of host link is .*; expected HOST:PORT"):
            HostLink(**ends)
    assert made == []


@pytest.fixture
def link() -> Iterator[HostLink]:
    """A link that ends with the test."""
    with HostLink(listen="127.0.0.1") as link:
        yield link


def test_the_log_of_the_native_link_goes_to_logging(
    link: HostLink, made: list[NativeLink], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "softs_fast.link")
    made[0].records.put((30, "no session with host1"))
    eventually(lambda: "no session with host1" in caplog.text)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "softs_fast.link.host_link")


def test_it_is_closed_once(link: HostLink, made: list[NativeLink]) -> None:
    link.drain()
    link.close()
    link.close()
    link.wait()
    assert made[0].did == ["drain", "stop"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(link: HostLink) -> None:
    check_fork(link.wait, match="this host link belongs to process")
