"""Which process and which host this is, and what has become of other processes: one rule for all rooms."""

from .hosts import boot_id, host_id
from .processes import Process, State, state_of, this_process

__all__ = ["Process", "State", "boot_id", "host_id", "state_of", "this_process"]
