"""This process: which handles are its own, what its forks have anew, how many connections it may have, what it imports."""

from .descriptors import raise_descriptor_limit
from .fork_locks import renewed_in_forks
from .forks import check_process
from .imports import lazy

__all__ = ["check_process", "lazy", "raise_descriptor_limit", "renewed_in_forks"]
