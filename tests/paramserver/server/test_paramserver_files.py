"""Files of a server: whole or not there, private, and of the right run."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from raw_client import job_of, small_model
from torch import nn, optim
from waiting import eventually

from softs_fast.durable import write_file, write_sealed
from softs_fast.errors import ConfigError, DamagedError, EndpointInUse
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.rounds.leases import LaneRecord, Range
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.rounds.snapshot import MemberRecord, Snapshot
from softs_fast.paramserver.server import state_file
from softs_fast.paramserver.server.evaluation import Evaluation
from softs_fast.paramserver.server.model_file import read_model, write_model
from softs_fast.paramserver.server.options import ServerOptions, TlsFiles
from softs_fast.paramserver.server.owner_file import OwnerAccess, owner_path, read_owner, write_owner
from softs_fast.paramserver.server.plain import decode_state
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.server.state_file import (
    Saved,
    before_path,
    load_state,
    new_state,
    save_state,
)
from softs_fast.paramserver.server.tls import certificate_pin, server_context
from softs_fast.paramserver.server.trainer import Trainer
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.messages import Counted, RunConfig, Status

SNAPSHOT = Snapshot(
    timeline=3,
    version=7,
    has_opened=True,
    samples=99,
    members=(MemberRecord("id", "name", 1, 4),),
    lanes=(LaneRecord(2, (Range(2, 0, 10, 1), Range(2, 12, 20, 1))),),
    banned=("x",),
)


def saved() -> Saved:
    new = new_state()
    return Saved(new.job, new.secret, new.owner, SNAPSHOT, Trainer(job_of()).state(), (0.5, 2))


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert load_state(path) is None
    given = saved()
    save_state(path, given)
    found = load_state(path)
    assert found is not None
    assert (found.job, found.secret, found.owner) == (given.job, given.secret, given.owner)
    assert found.snapshot == SNAPSHOT
    assert found.best == (0.5, 2)
    assert found.trainer is not None
    assert Trainer(job_of(), found.trainer).state().keys() == found.trainer.keys()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    save_state(path, saved())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_state(path)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_state_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s"
    write_file(path, data)
    with pytest.raises(ConfigError, match="expected 'softs-fast file 1 paramserver'"):
        load_state(path)


def test_a_state_with_code_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_sealed(path, "paramserver", lambda file: torch.save({"snapshot": Path}, file))
    with pytest.raises(ConfigError, match="cannot be read as a state"):
        load_state(path)


def two_states(path: Path) -> None:
    for version in (7, 8):
        save_state(path, replace(saved(), snapshot=replace(SNAPSHOT, version=version)))


@pytest.mark.parametrize("kind", ["altered", "cut", "emptied", "missing"])
def test_the_newest_whole_state_is_used_and_people_are_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    two_states(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"altered": data, "cut": data[:-1], "emptied": b""}[kind])
    found = load_state(path)
    assert found is not None
    assert found.snapshot is not None
    assert found.snapshot.version == 7
    assert str(path) in found.trouble
    assert str(before_path(path)) in found.trouble
    # The next ones are written beside the whole one, which stays until a newer one is whole.
    save_state(path, replace(saved(), snapshot=replace(SNAPSHOT, version=9)))
    assert load_state(path).snapshot.version == 9  # type: ignore[union-attr]
    path.unlink()
    assert load_state(path).snapshot.version == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["a link", "no descriptors"])
def test_a_state_that_may_be_whole_is_never_replaced_by_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "s"
    two_states(path)
    if kind == "a link":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(state_file, "read_sealed", refuse)
    with pytest.raises(ConfigError, match=f"file {path} must be a plain|cannot read {path}: Too many"):
        load_state(path)
    assert path.exists()


def test_a_state_that_arrives_while_it_is_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs replaces its file in two steps: what was missing at first is whole, not damaged."""
    path, aside, read = tmp_path / "s", tmp_path / "aside", state_file._read
    two_states(path)
    path.rename(aside)

    def late(one: Path) -> Saved:
        if aside.exists():
            aside.rename(path)
            raise FileNotFoundError
        return read(one)

    monkeypatch.setattr(state_file, "_read", late)
    assert load_state(path) is not None
    assert path.exists()
    assert not path.with_name("s.damaged").exists()


def test_states_that_are_both_altered_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    two_states(path)
    for one in (path, before_path(path)):
        data = bytearray(one.read_bytes())
        data[-1] ^= 1
        one.write_bytes(data)
    with pytest.raises(
        ConfigError, match=rf"state file {path} is damaged.*state file {before_path(path)} is damaged"
    ):
        load_state(path)
    assert path.exists()


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


def test_two_servers_do_not_share_an_address(serve) -> None:
    server = serve()
    port = int(server.invite.url.rpartition(":")[2])
    with pytest.raises(EndpointInUse, match=f"127.0.0.1:{port}"):
        serve(options={"listen": f"127.0.0.1:{port}"})


def test_a_restart_keeps_the_invite(serve, enter) -> None:
    first = serve()
    client = enter(first)
    client.push(client.frame())
    client.pull("1.0", 20.0)
    secret = first.invite.secret
    first.close()
    second = serve()
    assert second.invite.secret == secret
    status = second.status()
    assert (status.timeline, status.version) == (2, 1)


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


def test_a_run_that_is_over_writes_its_model_again(serve, enter, tmp_path: Path) -> None:
    first = serve(rounds=1)
    client = enter(first)
    client.push(client.frame())
    assert first.wait(45.0)
    (tmp_path / "o.pth").unlink()
    assert serve(rounds=1).wait(45.0)
    assert (tmp_path / "o.pth").exists()


# --- The trained model ---


def test_the_best_file_and_an_early_end(serve, enter, tmp_path: Path) -> None:
    results = iter([0.5, 0.7, 0.6, 0.6, 0.1])
    job = job_of(evaluate=lambda module: next(results))
    server = serve(job, options={"evaluate_every": 1, "stop_after_evaluations": 2})
    client = enter(server)
    for version in range(4):
        client.push(client.frame(version=(1, version)))
        client.pull(f"1.{version}", 20.0)
    assert server.wait(45.0)
    best = torch.load(tmp_path / "o.best.pth", weights_only=True)
    last = torch.load(tmp_path / "o.pth", weights_only=True)
    # Two steps of 0.1, and four.
    assert torch.allclose(best["0.weight"] - last["0.weight"], torch.full((3, 4), 0.2))


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


def test_a_run_that_got_no_better_is_over_for_later_servers(serve, enter, tmp_path: Path) -> None:
    job = job_of(evaluate=lambda module: 0.5)
    options = {"evaluate_every": 1, "stop_after_evaluations": 2}
    first = serve(job, options=options)
    client = enter(first)
    for version in range(3):
        client.push(client.frame(version=(1, version)))
        client.pull(f"1.{version}", 20.0)
    assert first.wait(45.0)
    model = torch.load(tmp_path / "o.pth", weights_only=True)
    again = serve(job, options=options)
    assert again.wait(45.0)
    assert torch.equal(torch.load(tmp_path / "o.pth", weights_only=True)["0.weight"], model["0.weight"])


def test_lower_may_be_better(tmp_path: Path) -> None:
    results = iter([2.0, 1.0, float("nan"), 3.0])
    trainer = Trainer(job_of(evaluate=lambda module: next(results)))
    options = ServerOptions(
        output=tmp_path / "o.pth", lower_is_better=True, evaluate_every=2, stop_after_evaluations=2
    )
    evaluation = Evaluation(options)
    assert [evaluation.is_due(number) for number in (1, 2, 3, 4)] == [False, True, False, True]
    for number in range(4):
        evaluation.evaluate(Version(1, number), trainer)
    assert evaluation.best == (1.0, 2)
    assert evaluation.is_enough


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = Trainer(job_of())
    options = ServerOptions(output=tmp_path / "o.safetensors")
    assert "version 1.3" in Evaluation(options).finish(Version(1, 3), trainer)
    loaded = load_file(tmp_path / "o.safetensors")
    small_model().load_state_dict(loaded)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_flipped_bit_of_the_trained_model_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"o.{suffix}"
    module = nn.Linear(64, 64)
    write_model(path, module)
    for name, one in read_model(path).items():
        assert torch.equal(one, module.state_dict()[name])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=str(path)):
        read_model(path)


def test_no_altered_byte_of_a_trained_model_gives_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "o.pth"
    module = nn.Linear(2, 1)
    write_model(path, module)
    data = path.read_bytes()
    n_read = 0
    for at in (*range(64), *range(len(data) - 256, len(data))):
        altered = bytearray(data)
        altered[at] ^= 128
        path.write_bytes(altered)
        try:
            found = read_model(path)
        except ConfigError:
            continue
        n_read += 1
        assert all(torch.equal(found[name], one) for name, one in module.state_dict().items())
    assert n_read < 160, "dates and other unused fields"
    path.write_bytes(data[:-1])
    with pytest.raises(ConfigError):
        read_model(path)


def test_a_file_of_weights_from_elsewhere_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert read_model(path)["w"].tolist() == [1.0, 1.0]
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is no file of weights"):
        read_model(path)


# --- Secrets ---


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


def test_a_certificate_is_made_once(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", True)
    server_context(files)
    pin = certificate_pin(files)
    assert pin is not None
    assert len(pin) == 32
    server_context(files)
    assert certificate_pin(files) == pin
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert certificate_pin(TlsFiles(files.cert, files.key)) is None
    files.key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        server_context(files)
    with pytest.raises(ConfigError, match="cannot read"):
        server_context(TlsFiles(tmp_path / "x", tmp_path / "y"))


def test_other_machines_need_tls_or_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without encryption"):
        ServerOptions(listen="0.0.0.0:0")
    ServerOptions(listen="0.0.0.0:0", allow_insecure=True)
    ServerOptions(listen="0.0.0.0:0", tls=TlsFiles(tmp_path / "c", tmp_path / "k", True))
    ServerOptions(listen="[::1]:0")
