"""Snapshots of models: each process publishes its tensors in memory that others of its host read at any time.

`Window` publishes, `RemoteWindow` reads, and `average` replaces tensors by those of others (`fetch`, then
`Fetched.apply`). `Publisher` publishes beside the training, `Members` finds the windows of others.
"""

from .average import Fetched, average, fetch
from .finite import are_finite
from .layout import SnapshotLayout, TensorEntry
from .members import MAX_MEMBERS, Member, Members
from .publisher import Publisher
from .window import MAX_CONFIG_BYTES, Address, Header, RemoteWindow, Window, as_json

__all__ = [
    "MAX_CONFIG_BYTES",
    "MAX_MEMBERS",
    "Address",
    "Fetched",
    "Header",
    "Member",
    "Members",
    "Publisher",
    "RemoteWindow",
    "SnapshotLayout",
    "TensorEntry",
    "Window",
    "are_finite",
    "as_json",
    "average",
    "fetch",
]
