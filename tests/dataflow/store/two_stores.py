"""Stores that believe themselves on different hosts, so that they reach each other over TCP alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from token_files import credentials

from softs_fast.dataflow.store import DataManager, HostLinks, segments
from softs_fast.trust import Der

CREDENTIALS = credentials("a")


@contextmanager
def store_on(
    host: str, worker: int, *, max_bytes: int = 1 << 22, shown: Der = CREDENTIALS, lost_after_s: float = 30.0
) -> Iterator[DataManager]:
    """A store of a worker on a host of that name."""
    links = HostLinks(shown, lost_after_s=lost_after_s)
    with mock.patch.object(segments, "boot_id", return_value=host):
        store = DataManager(worker, max_bytes=max_bytes, links=links)
    with store:
        yield store
