"""When the checkpoints of a job are copied, and written beside the steps that follow."""

from __future__ import annotations

import json
import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from ..coordination.job import Saved
from .checkpoint_files import write_facts
from .checkpoint_folder import CheckpointFolder
from .checkpoints import Checkpoints
from .peers import Peers
from .position import Position
from .sharded_state import ShardedState
from .whole_state import WholeState

__all__ = ["Saver", "tell_unwritten"]

logger = logging.getLogger(__name__)

#: What a rank says of its last checkpoint; the largest one counts.
_FAILED, _WRITING = 1, 2


class Saver:
    """Loads the newest whole checkpoint, and writes later ones in a thread, from a copy of the state.

    If all weights are on each rank, one rank writes: the one that is rank 0 when the step has ended. A rank that dies
    meanwhile leaves the checkpoint before, and the rank after it writes the next one. Else all ranks write.

    Args:
        options: Folder, and how often.
        job: Name of the job.
        state: State of the training.
        position: Position in the samples.
        peers: Ranks that begin together.
        is_alone: Whether these are all ranks of the job, so that no other process may use the folder.
    """

    def __init__(
        self,
        options: Checkpoints,
        job: str,
        state: WholeState | ShardedState,
        position: Position,
        peers: Peers,
        *,
        is_alone: bool,
    ) -> None:
        self._options = options
        self._folder = CheckpointFolder(options, job, position, state.layout, peers, is_alone=is_alone)
        self._state, self._position = state, position
        self._writing: Future[None] | None = None
        # The last checkpoint that this process has written: its step, when it was on disk, and how long it took.
        self._saved: tuple[int, float, float] | None = None
        # Step of the checkpoint that was left out, and its ranks.
        self._left_out: tuple[int, int] | None = None
        # The last one was not written. If a call of the ranks has failed, their next ones do not match.
        self._has_failed = False
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Open the folder.

        Raises:
            ConfigError: The folder cannot be written, or another process is alone in it; or the state cannot be written.
        """
        self._state.check()
        with ExitStack() as running:
            running.enter_context(self._folder)
            running.enter_context(self._state.opened())
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
        self._folder.load(*self._state.loads())

    def committed(self, rank: int, size: int) -> None:
        """Begin to write the checkpoint of the step that was committed, if it is due and this rank is to write.

        What cannot be written is logged, and training goes on.
        """
        step, peers = self._position.committed, self._state.peers
        if step % self._options.every:
            return
        self._left_out = None
        if rank != peers.rank:
            return
        if self._options.stays(step) and self._writing is not None:
            wait([self._writing])
        is_writing = self._writing is not None and not self._writing.done()
        found = peers.largest(_WRITING if is_writing else _FAILED if self._has_failed else 0)
        if found == _WRITING:
            self._left_out = step, size
            logger.warning(
                "the checkpoint of step %d is left out, because the one before is still being written", step
            )
            return
        if found == _FAILED:
            self._has_failed = False
            self._state.writers = self._state.writers.renewed()
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
            self._state.peers.together(self._state.copy)
            copied_ms = 1e3 * (time.perf_counter() - began_s)
            logger.info("the state of step %d was copied for its checkpoint in %.0f ms", step, copied_ms)
            self._writing = self._threads.submit(self._write, facts)
        except Exception as error:  # of the user's state_dict, too
            tell_unwritten(step, error)

    def _write(self, facts: dict[str, Any]) -> None:
        step, began_s = facts["step"], time.monotonic()
        state, folder, partial = self._state, self._folder, self._folder.partial(facts["step"])
        together, is_first, known = state.writers.together, state.writers.rank == 0, dict[str, Any]()

        def begin() -> None:
            if is_first:
                folder.make_room(facts, state.n_bytes)
                partial.mkdir()

        def seal() -> None:
            if is_first:
                write_facts(partial, facts, known)
                folder.seal(partial, step)

        has_begun = False
        try:
            together(begin)
            has_begun = True
            together(lambda: known.update(state.write(partial)))
            for text in state.writers.texts(json.dumps(known)):
                known.update(json.loads(text))
            together(seal)
        except Exception as error:
            # Another rank became rank 0 meanwhile, wrote a later one first, and removed what was unfinished.
            if state.writers.size == 1 and has_begun and not partial.exists() and self._options.stays(step):
                self._write(facts)
                return
            self._has_failed = True
            if is_first:
                shutil.rmtree(partial, ignore_errors=True)
            tell_unwritten(step, error)
            return
        ended_s = time.monotonic()
        self._saved = step, ended_s, ended_s - began_s
        logger.info("the checkpoint of step %d is on disk after %.0f ms", step, 1e3 * (ended_s - began_s))


def tell_unwritten(step: int, error: Exception) -> None:
    """Log that a checkpoint is lost."""
    logger.error(
        "the checkpoint of step %d is not written: %s; the one before it stays the newest", step, error
    )
