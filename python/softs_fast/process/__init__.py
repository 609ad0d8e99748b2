"""This process: which handles are its own, and how many connections it may have."""

from .descriptors import raise_descriptor_limit
from .forks import check_process

__all__ = ["check_process", "raise_descriptor_limit"]
