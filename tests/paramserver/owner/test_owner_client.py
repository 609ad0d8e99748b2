"""What the owner sees of a run and has it do; others see and do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from softs_fast.errors import ConfigError, PeerLost
from softs_fast.paramserver.owner.access import OwnerAccess, owner_path, read_owner, write_owner
from softs_fast.paramserver.owner.client import OwnerClient
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.server.training.state_file import (
    load_state,
)
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.messages import Control
from softs_fast.paramserver.wire.signing import owner_key


def owner_of(server: Server, state: Path) -> OwnerClient:
    saved = load_state(state)
    assert saved is not None
    return OwnerClient(OwnerAccess(server.invite, owner_key(saved.owner, saved.job)))


def test_the_owner_sees_and_rules(serve, enter, tmp_path: Path) -> None:
    server = serve(world_size=2, quorum=2)
    first, second = enter(server), enter(server)
    second.pull()
    first.push(first.frame())
    with owner_of(server, tmp_path / "s.state") as owner:
        status = owner.status()
        assert status is not None
        assert (status.state, status.have, status.need, status.world_size) == ("open", 1, 2, 2)
        assert '1 of 2 pushes are here; waits for worker "w" (rank 1)' in status.waiting_for
        assert owner.status(status.serial, 0.05) is None
        owner.control(Control("pause"))
        second.push(second.frame())
        status = owner.status()
        assert status is not None
        assert (status.state, status.version, status.have) == ("paused", 0, 2)
        owner.control(Control("resume"))
        assert first.pull("1.0", 20.0).status == 200
        owner.control(Control("kick", second.id))
        kicked = second.pull()
        assert (kicked.status, kicked.code) == (403, "kicked")
        with pytest.raises(ConfigError, match="there is no worker"):
            owner.control(Control("kick", "x0"))
        owner.control(Control("stop"))
        assert server.wait(45.0)
        with pytest.raises(PeerLost, match="look whether it runs, and start it with the same --state"):
            owner.status()


def test_a_wrong_key_rules_nothing(serve, enter) -> None:
    server = serve()
    with OwnerClient(OwnerAccess(server.invite, bytes(32))) as other:
        with pytest.raises(ConfigError, match="refuses"):
            other.control(Control("stop"))
        with pytest.raises(ConfigError, match="refuses"):
            other.status()
    client = enter(server)
    assert client.ask("POST", answers.CONTROL, b'{"action":"stop"}').status == 404
    assert server.status().state != "done"


def test_the_owner_reads_its_file(tmp_path: Path) -> None:
    state = tmp_path / "s"
    access = OwnerAccess(Invite("http://127.0.0.1:1", bytes(16), bytes(32)), bytes(range(32)))
    write_owner(state, access)
    assert read_owner(state) == access
    owner_path(state).chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_owner(state)
    with pytest.raises(ConfigError, match="a server writes it"):
        read_owner(tmp_path / "other")
