"""Servers that start again from their files, and what they leave."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from raw_client import job_of
from torch import nn, optim
from waiting import eventually

from softs_fast.errors import ConfigError, EndpointInUse
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.server.training.plain import decode_state
from softs_fast.paramserver.server.training.state_file import (
    load_state,
)
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.messages import Counted, RunConfig, Status


def test_a_server_tells_that_it_goes_on_from_the_file_before(serve, enter, tmp_path: Path) -> None:
    """Its timeline is in both files before a worker sees it, so no later server begins the same one."""
    serve().close()
    (tmp_path / "s.state").unlink()
    second = serve()
    assert second.status().timeline == 2
    second.close()
    (tmp_path / "s.state").write_bytes(b"")
    third = serve()
    assert third.status().timeline == 3
    client = enter(third)
    told = client.ask("GET", f"{answers.STATUS}?since=-1").record(Status).log
    assert any("which is one file older" in one for one in told)


def test_a_server_needs_its_file_to_start(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        Server(
            job_of(),
            RunOptions(world_size=1, rounds=1),
            RunConfig(rounds=1, batch_size=1),
            ServerOptions(listen="127.0.0.1:0", state=folder / "s"),
        )


def test_two_servers_share_no_state(serve) -> None:
    serve()
    with pytest.raises(ConfigError, match=r"state file .*s\.state is in use by this process"):
        serve()


def test_two_servers_do_not_share_an_address(serve, tmp_path: Path) -> None:
    server = serve()
    port = int(server.invite.url.rpartition(":")[2])
    with pytest.raises(EndpointInUse, match=f"127.0.0.1:{port}"):
        serve(options={"listen": f"127.0.0.1:{port}", "state": tmp_path / "t.state"})


def test_a_restart_waits_for_no_optimizer(serve, enter) -> None:
    """Torch imports for a second to make the first one: a push is counted before that, and its step follows."""
    begun, go_on = threading.Event(), threading.Event()
    is_second = False

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        if is_second:
            begun.set()
            assert go_on.wait(45)
        return optim.SGD(parameters, lr=0.1, momentum=0.9)

    job = job_of(optimizer=optimizer)
    first = serve(job)
    client = enter(first, job)
    client.push(client.frame(1.0))
    _, before = client.contents(client.pull("1.0", 20.0))
    first.close()
    is_second = True
    second = serve(job)
    client = enter(second, job)
    assert begun.wait(45)
    _, found = client.contents(client.pull())
    assert torch.equal(found.parameters, before.parameters)
    assert client.push(client.frame(0.0, (2, 1))).record(Counted).have == 1
    assert second.status().version == 1
    go_on.set()
    _, after = client.contents(client.pull("2.1", 20.0))
    # The gradient is 0, so this is the momentum of the first server: 0.1 * 0.9.
    assert torch.allclose(after.parameters, before.parameters - 0.09)


def test_a_restart_with_another_optimizer_ends_and_the_file_stays(serve, enter, tmp_path: Path) -> None:
    first = serve(job_of(optimizer=lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9)))
    client = enter(first)
    client.push(client.frame())
    client.pull("1.0", 20.0)
    first.close()

    def two_groups(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        one, *others = parameters
        return optim.SGD([{"params": [one]}, {"params": others}], lr=0.1)

    second = Server(
        job_of(optimizer=two_groups),
        RunOptions(world_size=1, rounds=100),
        RunConfig(rounds=1, batch_size=4),
        ServerOptions(
            listen="127.0.0.1:0", state=tmp_path / "s.state", output=tmp_path / "o.pth", linger_s=0
        ),
    )
    with pytest.raises(ConfigError, match="another model or optimizer"):
        second.wait(45)
    found = load_state(tmp_path / "s.state")
    assert found is not None
    assert found.snapshot is not None
    assert found.trainer is not None
    assert (found.snapshot.timeline, found.snapshot.version) == (2, 1)
    assert len(decode_state(found.trainer["optimizer"])["param_groups"]) == 1
    assert not (tmp_path / "o.pth").exists()


def test_a_state_knows_the_result_of_its_version(serve, enter, tmp_path: Path) -> None:
    """Else a later server takes a worse one for the best, and writes it over the best file."""
    server = serve(job_of(evaluate=lambda module: 0.5), options={"evaluate_every": 1})
    client = enter(server)
    client.push(client.frame())
    assert client.pull("1.0", 20.0).status == 200

    def best() -> object:
        found = load_state(tmp_path / "s.state")
        return found is not None and found.snapshot.version == 1 and (found.best,)

    assert eventually(best, "the state of version 1") == ((0.5, 0),)


def test_a_run_that_is_over_writes_its_model_again(serve, enter, tmp_path: Path) -> None:
    first = serve(rounds=1)
    client = enter(first)
    client.push(client.frame())
    assert first.wait(45.0)
    (tmp_path / "o.pth").unlink()
    assert serve(rounds=1).wait(45.0)
    assert (tmp_path / "o.pth").exists()


def test_a_run_that_gets_no_better_ends_and_is_over_for_later_servers(serve, enter, tmp_path: Path) -> None:
    """The best weights are in a file of their own."""
    results = iter([0.5, 0.7, 0.6, 0.6, 0.1])
    job = job_of(evaluate=lambda module: next(results, 0.1))
    options = {"evaluate_every": 1, "stop_after_evaluations": 2}
    first = serve(job, options=options)
    client = enter(first)
    for version in range(4):
        client.push(client.frame(version=(1, version)))
        client.pull(f"1.{version}", 20.0)
    assert first.wait(45.0)
    best, last = (torch.load(tmp_path / f"o.{one}pth", weights_only=True) for one in ("best.", ""))
    # Two steps of 0.1, and four.
    assert torch.allclose(best["0.weight"] - last["0.weight"], torch.full((3, 4), 0.2))
    assert serve(job, options=options).wait(45.0)
    again = torch.load(tmp_path / "o.pth", weights_only=True)
    assert torch.equal(again["0.weight"], last["0.weight"])
