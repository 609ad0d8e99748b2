"""What a checkpoint of all members holds: recorded when the last of them has written its part, verified at load."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from ...durable import verify_manifest, write_manifest
from ...errors import PeerLost
from ..job.messages import Table
from ..session.store import SessionStore

__all__ = ["record_part", "verify"]


def record_part(path: str, step: int, store: SessionStore, table: Table, logger: logging.Logger) -> bool:
    """Count that this member has written its part; the last member records length and digest of each file.

    No member waits for another one. A path that names no file or folder here, such as a URL, has no record.

    Args:
        path: Path of the checkpoint.
        step: Step of the checkpoint.
        store: Store of the epoch.
        table: Table of the epoch.
        logger: Logger that is told why a checkpoint does not count.

    Returns:
        whether the part counts; if not, the epoch is over, or the coordinator cannot be reached.

    Raises:
        OSError: a file cannot be read, or the record cannot be written.
        ConfigError: the checkpoint holds something that is neither a file nor a folder.
    """
    key = f"checkpoint/{step}/{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()}"
    try:
        is_last = store.add(key, 1) == len(table.members)
        if is_last:
            store.delete_key(key)
    except PeerLost as error:
        logger.info("checkpoint %s of step %d does not count: %s", path, step, error)
        return False
    if is_last and os.path.exists(path):
        write_manifest(Path(path))
    return True


def verify(table: Table, rank: int) -> None:
    """Check the files of the checkpoint that a table names; each member checks some of them.

    So a member has the weights of whole files only when all have begun the epoch.

    Raises:
        DamagedError: files are missing, cut or altered.
        OSError: a file cannot be read.
    """
    path = table.checkpoint
    if os.path.exists(path):
        verify_manifest(Path(path), f"checkpoint {path}", (rank, len(table.members)))
