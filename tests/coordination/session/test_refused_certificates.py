"""Certificates that do not fit end a worker at once, with the cause and the remedy, instead of after its time-out."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
from certificates import Authority
from own_coordinators import OwnCoordinators
from waiting import WATCHDOG_S, eventually

from softs_fast.coordination.credentials import ClientCredentials, ServerCredentials
from softs_fast.coordination.job.messages import Hello
from softs_fast.coordination.node import Membership
from softs_fast.coordination.node.worker_link import WorkerLink
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.trust import outage


@dataclass
class Files:
    """Certificates of two authorities."""

    folder: Path
    ours: Authority
    foreign: Authority

    def issue(self, name: str, authority: Authority | None = None, **options: Any) -> dict[str, Path]:
        cert, key = (authority or self.ours).issue(name, "w0", **options)
        return {"cert": Path(cert), "key": Path(key)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    return Files(folder, Authority(folder), Authority(folder, "foreign"))


def cases(files: Files) -> dict[str, tuple[dict[str, Path], dict[str, Path], str]]:
    """What the coordinator has, what the worker has, and what the worker is told."""
    good, ours, foreign = files.issue("server"), {"ca": files.ours.file}, {"ca": files.foreign.file}
    asks = {**good, **ours}
    return {
        "another CA": (good, foreign, "unable to get local issuer.*; give the CA"),
        "expired": (files.issue("late", is_expired=True), ours, "has expired; renew it"),
        "not valid yet": (files.issue("early", begins=timedelta(hours=1)), ours, "not yet valid; wait"),
        "another address": (
            files.issue("far", address="10.1.2.3"),
            ours,
            "not valid for '127.0.0.1'; issue it",
        ),
        "a worker without one": (asks, ours, "asks for a certificate, and this process has none"),
        "a worker of another CA": (
            asks,
            {**ours, **files.issue("w", files.foreign)},
            "does not accept .*w.pem",
        ),
        "a worker with an old one": (
            asks,
            {**ours, **files.issue("old", is_expired=True)},
            "does not accept .*old.pem",
        ),
        "a worker without TLS": (good, {}, "it speaks TLS, and this process does not"),
        "a coordinator without TLS": ({}, ours, "it speaks no TLS"),
    }


def test_a_worker_and_an_administrator_end_at_once_with_the_cause(files: Files, own: OwnCoordinators) -> None:
    for name, (theirs, mine, text) in cases(files).items():
        address, credentials = own.serve(ServerCredentials(**theirs)), ClientCredentials(**mine)
        with Membership(address, job="j", worker_id="w0", credentials=credentials) as member:
            with pytest.raises(ConfigError) as refused:
                member.next_epoch(WATCHDOG_S)
            assert re.search(text, str(refused.value)), name
            assert str(refused.value) == member.not_ready, name
        with CoordinatorClient(address, credentials) as client, pytest.raises(ConfigError, match=text):
            client.status()


def test_a_name_that_appears_later_is_waited_for(
    own: OwnCoordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, lookup = own.serve(), socket.getaddrinfo

    def not_yet(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_yet)
    with Membership(address, job="j", worker_id="w0") as member:
        eventually(lambda: "Name or service not known" in member.not_ready)
        with pytest.raises(PeerLost, match="Name or service not known"):
            member.next_epoch(0.0)
        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        assert member.next_epoch(WATCHDOG_S).size == 1


def test_a_timeout_names_the_last_cause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "_WARN_S", 0.1)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    with Membership("127.0.0.1:1", job="j", worker_id="w0") as member:
        eventually(warnings)
        with pytest.raises(PeerLost, match="Connection refused"):
            member.next_epoch(0.0)
        assert "Connection refused" in member.not_ready
    link = WorkerLink("127.0.0.1:1", Hello("j", "w0", 1), None)
    link.session.start()
    eventually(lambda: len(warnings()) == 2)
    with pytest.raises(PeerLost, match=r"is away, and in no epoch after 0.5 s; .*Connection refused"):
        link.next_build(time.monotonic() - 0.5, 0.5)
    link.session.close()
    assert all("Connection refused" in line for line in warnings())
