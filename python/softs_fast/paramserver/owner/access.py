"""The file with which the owner's programs find a server and sign."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from ...durable import read_private, write_file
from ...errors import ConfigError
from ..wire.invite import JOB_BYTES, SECRET_BYTES, Invite

__all__ = ["OwnerAccess", "owner_path", "read_owner", "write_owner"]

_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class OwnerAccess:
    """What the owner has.

    Attributes:
        invite: Invite of the server, at its address on this machine.
        key: Key that signs the owner's requests.
    """

    invite: Invite
    key: bytes = field(repr=False)

    @classmethod
    def of_page(cls, url: str) -> OwnerAccess:
        """Read the URL of the owner's page, which ends in the key.

        Raises:
            ConfigError: it is no URL, or has no key.
        """
        server, _, key = url.partition("#")
        if re.fullmatch(r"[0-9a-f]{64}", key) is None:
            raise ConfigError(
                f"the page {server} comes without its key; give the whole URL that the server printed"
            )
        # An owner's requests need neither the job nor the secret of its workers.
        return cls(Invite(server.rstrip("/"), bytes(JOB_BYTES), bytes(SECRET_BYTES)), bytes.fromhex(key))


def owner_path(state: Path) -> Path:
    """Return where the file is, from where the state is."""
    return state.with_name(f"{state.name}.owner")


def write_owner(state: Path, access: OwnerAccess) -> None:
    """Write the file, which only this user may read.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps({"invite": str(access.invite), "key": access.key.hex()}) + "\n"
    path = owner_path(state)
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def read_owner(state: Path) -> OwnerAccess:
    """Read the file.

    Raises:
        ConfigError: there is none, others can read it, or it is malformed.
    """
    path = owner_path(state)
    try:
        data = read_private(path, most_bytes=_MAX_BYTES, what=str(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; a server writes it beside its --state"
        ) from None
    try:
        given = json.loads(data)
        return OwnerAccess(Invite.parse(given["invite"]), bytes.fromhex(given["key"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no file of an owner: {error}") from None
