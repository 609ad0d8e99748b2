"""The checkpoints of a job in which each rank has all weights: written beside the steps that follow."""

from __future__ import annotations

import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ..coordination.job import Saved
from ..coordination.node import TrainingState
from ..errors import ConfigError, DamagedError, WireError
from .checkpoint_files import load_state, write_facts, write_state
from .checkpoint_folder import CheckpointFolder
from .checkpoints import Checkpoints
from .peers import Peers
from .position import Position

__all__ = ["Saver", "load_whole"]

logger = logging.getLogger(__name__)


class Saver:
    """Loads the newest whole checkpoint, and writes later ones in a thread, from a copy of the state.

    All weights are on each rank, so one rank writes: the one that is rank 0 when the step has ended. A rank that dies
    meanwhile leaves the checkpoint before, and the rank after it writes the next one.

    Args:
        options: Folder, and how often.
        job: Name of the job.
        state: State of the training, which carries the position.
        position: Position in the samples.
        peers: Ranks that begin together.
        is_alone: Whether these are all ranks of the job, so that no other process may use the folder.
    """

    def __init__(
        self,
        options: Checkpoints,
        job: str,
        state: TrainingState,
        position: Position,
        peers: Peers,
        *,
        is_alone: bool,
    ) -> None:
        self._options = options
        self._folder = CheckpointFolder(options, job, position, "whole", peers, is_alone=is_alone)
        self._state, self._position = state, position
        self._writing: Future[None] | None = None
        self._copies: dict[str, torch.Tensor] = {}
        # The last checkpoint that this process has written: its step, when it was on disk, and how long it took.
        self._saved: tuple[int, float, float] | None = None
        # Step of the checkpoint that was left out, and its ranks.
        self._left_out: tuple[int, int] | None = None
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Open the folder.

        Raises:
            ConfigError: The folder cannot be written, or another process is alone in it; or the state cannot be written.
        """
        self._state.check()
        with ExitStack() as running:
            running.enter_context(self._folder)
            self._threads = running.enter_context(ThreadPoolExecutor(1, "softs-checkpoint"))
            # Its thread starts now: one that cannot start later would leave its checkpoint in the queue, to be written with
            # the tensors of the next one.
            self._threads.submit(int).result()
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the last checkpoint is written; without an error, also write the one of this step if it was left out."""
        with self._running:
            if kind is None and self._writing is not None and self._left_out is not None:
                step, size = self._left_out
                if step == self._position.committed:
                    wait([self._writing])
                    self._begin(step, size)

    def load(self) -> None:
        """Load the newest checkpoint that is whole; without any, do nothing. A call of all ranks that begin together.

        Raises:
            ConfigError: It is of another job, other data, another model or another version, or cannot be read.
            DamagedError: There are checkpoints, and none is whole.
        """
        self._folder.load(lambda path: load_whole(path, self._state))

    def committed(self, rank: int, size: int) -> None:
        """Begin to write the checkpoint of the step that was committed, if it is due and this rank is to write it.

        What cannot be written is logged, and training goes on.
        """
        step = self._position.committed
        if step % self._options.every:
            return
        self._left_out = None
        if rank != 0:
            return
        if self._options.stays(step) and self._writing is not None:
            wait([self._writing])
        if self._writing is not None and not self._writing.done():
            self._left_out = step, size
            logger.warning(
                "the checkpoint of step %d is left out, because the one before is still being written", step
            )
            return
        self._begin(step, size)

    def saved(self) -> Saved | None:
        """Return the last checkpoint that this process has written."""
        if self._saved is None:
            return None
        step, at_s, write_s = self._saved
        return Saved(step, time.monotonic() - at_s, write_s)

    def _begin(self, step: int, size: int) -> None:
        began_s, facts = time.perf_counter(), self._folder.facts(size)
        try:
            text, self._copies = self._state.snapshot(self._copies)
            copied_ms = 1e3 * (time.perf_counter() - began_s)
            logger.info("the state of step %d was copied for its checkpoint in %.0f ms", step, copied_ms)
            self._writing = self._threads.submit(self._write, facts, text, self._copies)
        except Exception as error:  # of the user's state_dict, too
            logger.error("the checkpoint of step %d is not written: %s", step, error)

    def _write(self, facts: dict[str, Any], text: bytes, tensors: dict[str, torch.Tensor]) -> None:
        step, began_s = facts["step"], time.monotonic()
        partial, has_begun = self._folder.partial(step), False
        try:
            self._folder.make_room(facts, len(text) + sum(tensor.nbytes for tensor in tensors.values()))
            partial.mkdir()
            has_begun = True
            write_state(partial, text, tensors)
            write_facts(partial, facts)
            path = self._folder.seal(partial, step)
        except Exception as error:
            # Another rank became rank 0 meanwhile, wrote a later one first, and removed what was unfinished.
            if has_begun and not partial.exists() and self._options.stays(step):
                self._write(facts, text, tensors)
                return
            shutil.rmtree(partial, ignore_errors=True)
            logger.error(
                "the checkpoint of step %d is not written: %s; the one before it stays the newest",
                step,
                error,
            )
            return
        ended_s = time.monotonic()
        self._saved = step, ended_s, ended_s - began_s
        logger.info("checkpoint %s: %.0f ms", path, 1e3 * (ended_s - began_s))


def load_whole(path: Path, state: TrainingState) -> None:
    """Load the state of a verified checkpoint.

    Raises:
        ConfigError: It does not fit; the state is undefined then.
        DamagedError: It ends before its last tensor.
        OSError: It cannot be read.
    """
    try:
        load_state(path, state)
    except DamagedError:
        raise
    except (ConfigError, WireError) as error:
        raise ConfigError(f"checkpoint {path} does not fit this training: {error}") from error
