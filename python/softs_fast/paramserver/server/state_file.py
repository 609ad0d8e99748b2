"""The file with which a run outlives its server."""

from __future__ import annotations

import os
import pickle
import secrets
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...errors import ConfigError
from ..rounds.leases import LaneRecord, Range
from ..rounds.snapshot import MemberRecord, Snapshot
from .files import write_atomically

__all__ = ["Saved", "load_state", "new_state", "save_state"]

_FORMAT = "softs-fast paramserver 1"


@dataclass(frozen=True)
class Saved:
    """All that a later server needs.

    Attributes:
        job: 16 random bytes that name the run.
        secret: of the invite.
        owner: of the owner's key.
        snapshot: of the run; None before the first server has started.
        trainer: `Trainer.state`; None with `snapshot`.
        best: the best result of an evaluation, and evaluations since then.
    """

    job: bytes
    secret: bytes = field(repr=False)
    owner: bytes = field(repr=False)
    snapshot: Snapshot | None = None
    trainer: dict[str, Any] | None = field(default=None, repr=False)
    best: tuple[float | None, int] = (None, 0)


def new_state() -> Saved:
    """Return the state of a run that nothing is known of."""
    return Saved(secrets.token_bytes(16), secrets.token_bytes(32), secrets.token_bytes(32))


def save_state(path: Path, saved: Saved) -> None:
    """Write a state so that a crash leaves the old one or the new one.

    Raises:
        OSError: it cannot be written, such as on a full disk; the old one is there.
    """
    assert saved.snapshot is not None
    data = {
        "format": _FORMAT,
        "job": saved.job.hex(),
        "secret": saved.secret.hex(),
        "owner": saved.owner.hex(),
        "snapshot": _plain(saved.snapshot),
        "trainer": saved.trainer,
        "best": list(saved.best),
    }
    write_atomically(path, lambda file: torch.save(data, file))


def load_state(path: Path) -> Saved | None:
    """Read a state; None if there is none.

    Raises:
        ConfigError: others can read or replace it, or it is no state.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError(f"{path} holds keys, and other users can read or replace it; chmod 600 {path}")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        if data.get("format") != _FORMAT:
            raise ConfigError(f"{path} is no state of a parameter server of this version")
        given = data["snapshot"]
        snapshot = Snapshot(
            timeline=given["timeline"],
            version=given["version"],
            has_opened=given["has_opened"],
            samples=given["samples"],
            members=tuple(MemberRecord(**one) for one in given["members"]),
            lanes=tuple(
                LaneRecord(epoch, tuple(Range(*one) for one in ranges)) for epoch, ranges in given["lanes"]
            ),
            banned=tuple(given["banned"]),
        )
        job, secret, owner = (bytes.fromhex(data[name]) for name in ("job", "secret", "owner"))
        metric, n_since = data["best"]
        return Saved(job, secret, owner, snapshot, data["trainer"], (metric, n_since))
    except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read as a state of a parameter server: {error}") from None
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{path} has more than tensors and numbers: {error}") from None


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as numbers, texts, lists and dicts: a file with classes is not loaded."""
    lanes = [[lane.epoch, [list(one) for one in lane.ranges]] for lane in snapshot.lanes]
    members = [asdict(one) for one in snapshot.members]
    return {**vars(snapshot), "members": members, "lanes": lanes, "banned": list(snapshot.banned)}
