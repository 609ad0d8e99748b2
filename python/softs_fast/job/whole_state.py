"""The state of a job in which each rank has all weights, as files: one rank writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from ..coordination.node import TrainingState
from ..durable import Facts
from .checkpoint_files import load_state, write_state
from .checkpoint_folder import Layout
from .peers import Peers

__all__ = ["WholeState"]


class WholeState:
    """Copies, writes and loads a state that each rank has.

    Args:
        state: State of the training, which carries the position.

    Attributes:
        layout: Layout of the files.
        peers: Ranks that agree on a checkpoint between two steps: rank 0 alone.
        writers: Ranks that write a checkpoint, in their threads: rank 0 alone.
    """

    layout: Layout = "whole"

    def __init__(self, state: TrainingState) -> None:
        self.peers = self.writers = Peers()
        self._state = state
        self._text = b""
        self._copies: dict[str, torch.Tensor] = {}

    def check(self) -> None:
        """Check that the state can be written.

        Raises:
            ConfigError: A part of it cannot; the text names it.
        """
        self._state.check()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have the state ready to be written in a block."""
        with ThreadPoolExecutor(1, "softs-copy") as self._beside:
            # Its thread starts now: later there may be no memory for one.
            self._beside.submit(int).result()
            hook = self._state.optimizer.register_step_pre_hook(self._state.settle)
            try:
                yield
            finally:
                hook.remove()

    def loads(self) -> list[Callable[[Path], None]]:
        """Return what loads a verified checkpoint, for `CheckpointFolder.load`."""
        return [lambda path: load_state(path, self._state)]

    def copy(self) -> None:
        """Copy the state into memory that is kept; what the optimizer keeps, beside the next step.

        Raises:
            ConfigError: A part of it cannot be written; the text names it.
        """
        self._text, self._copies = self._state.snapshot(self._copies, self._beside)

    @property
    def n_bytes(self) -> int:
        """Bytes of the last copy."""
        return len(self._text) + sum(one.nbytes for one in self._copies.values())

    def write(self, folder: Path) -> Facts:
        """Write the copy; return the facts of files that are known with it.

        Raises:
            OSError: It cannot be written.
        """
        self._state.copied()
        write_state(folder, self._text, self._copies)
        return {}
