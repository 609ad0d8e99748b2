"""The file with which a run outlives its server, and the one before it.

Both are sealed: one that was altered is refused, and the run goes on from the other one. Neither is ever deleted before a
newer one is whole.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import secrets
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from ....durable import Lock, read_sealed, sync_folder, write_sealed
from ....errors import ConfigError, WireError
from ....records import from_plain, plain
from ...rounds.snapshot import Snapshot

__all__ = ["Saved", "before_path", "load_state", "lock_state", "new_state", "save_state"]

_KIND = "paramserver"
#: The loader refuses longer files.
_MOST_BYTES = 1 << 50


@dataclass(frozen=True)
class Saved:
    """All that a later server needs.

    Attributes:
        job: 16 random bytes that name the run.
        secret: Secret of the invite.
        owner: Random bytes from which the owner's key is made.
        snapshot: Snapshot of the run; None before the first server has started.
        trainer: State of the trainer, `Trainer.state`; None with `snapshot`.
        best: Best result of an evaluation, and evaluations since then.
        trouble: Why this is not the newest state, for people; "" if it is.
    """

    job: bytes
    secret: bytes = field(repr=False)
    owner: bytes = field(repr=False)
    snapshot: Snapshot | None = None
    trainer: dict[str, Any] | None = field(default=None, repr=False)
    best: tuple[float | None, int] = (None, 0)
    trouble: str = ""


def lock_state(path: Path) -> Lock:
    """Return the lock of a state, by a file beside it: two servers would write over each other's steps.

    Raises:
        ConfigError: another server uses the state, or the lock file cannot be used.
    """
    what = f"state file {path}"
    try:
        return Lock(path.with_name(f"{path.name}.lock"), what)
    except OSError as error:
        raise ConfigError(
            f"the lock of {what} cannot be written: {error.strerror or error}; give another --state"
        ) from None


def new_state() -> Saved:
    """Return the state of a run that nothing is known of."""
    return Saved(secrets.token_bytes(16), secrets.token_bytes(32), secrets.token_bytes(32))


def save_state(path: Path, saved: Saved) -> None:
    """Write a state; the one before it stays beside it.

    Raises:
        OSError: it cannot be written, such as on a full disk; the old ones are there.
    """
    assert saved.snapshot is not None
    data = {
        "job": saved.job.hex(),
        "secret": saved.secret.hex(),
        "owner": saved.owner.hex(),
        "snapshot": plain(saved.snapshot),
        "trainer": saved.trainer,
        "best": list(saved.best),
    }
    new = path.with_name(f"{path.name}.new")
    write_sealed(new, _KIND, lambda file: torch.save(data, cast("BinaryIO", file)))
    with contextlib.suppress(FileNotFoundError):
        path.replace(before_path(path))
    new.replace(path)
    sync_folder(path.parent)


def before_path(path: Path) -> Path:
    """Return where the state before the newest one is."""
    return path.with_name(f"{path.name}.before")


def load_state(path: Path) -> Saved | None:
    """Read the newest whole state; None if there is none.

    Raises:
        ConfigError: A file cannot be read, is a link, others can read it, or no file is a whole state.
    """
    before, is_damaged = before_path(path), False
    if not path.exists() and not before.exists():
        return None
    try:
        return _read(path)
    except FileNotFoundError:
        trouble = f"{path} is missing"
    except ConfigError as error:
        found = path.lstat()
        if not before.exists() or not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise
        trouble, is_damaged = str(error), True
    except OSError as error:
        # It may be whole, so an older one must not replace it.
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}; start the server once it can be read"
        ) from None
    try:
        older = _read(before)
    except OSError as error:
        raise ConfigError(f"{trouble}; and cannot read {before}: {error.strerror or error}") from None
    except ConfigError as error:
        raise ConfigError(f"{trouble}; and {error}") from None
    # One that was missing may be there by now, and whole: a server that runs replaces it in two steps.
    if is_damaged:
        path.replace(path.with_name(f"{path.name}.damaged"))
    return replace(older, trouble=f"{trouble}; the run goes on from {before}, which is one file older")


def _read(path: Path) -> Saved:
    try:
        content = read_sealed(path, _KIND, most_bytes=_MOST_BYTES, what=f"state file {path}")
        data = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        snapshot = from_plain(Snapshot, data["snapshot"])
        job, secret, owner = (bytes.fromhex(data[name]) for name in ("job", "secret", "owner"))
        metric, n_since = data["best"]
        return Saved(job, secret, owner, snapshot, data["trainer"], (metric, n_since))
    except (OSError, ConfigError):
        raise
    except (
        WireError, EOFError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        raise ConfigError(f"{path} cannot be read as a state of a parameter server: {error}") from None
