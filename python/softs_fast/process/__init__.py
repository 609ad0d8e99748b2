"""This process: which handles are its own, what its forks have anew, its descriptors, imports, and waits for threads."""

from .closing import Closing
from .descriptors import raise_descriptor_limit
from .fork_locks import renewed_in_forks
from .forks import check_process
from .imports import lazy
from .joins import join

__all__ = ["Closing", "check_process", "join", "lazy", "raise_descriptor_limit", "renewed_in_forks"]
