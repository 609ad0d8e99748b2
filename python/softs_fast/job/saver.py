"""The checkpoints of a job: loaded before its first step, and written beside the steps that follow."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ..coordination.job import Saved
from ..coordination.node import TrainingState
from ..durable import Lock, publish_folder
from ..errors import ConfigError, DamagedError, WireError
from .checkpoint_files import load_state, read_facts, verified_facts, write_checkpoint
from .checkpoints import Checkpoints
from .position import Position
from .retention import TRASH, name_of, outdated, partial_name, steps_in, unfinished

__all__ = ["Saver"]

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
        is_alone: Whether this process is all of the job, so that no other one may use the folder.
    """

    def __init__(
        self, options: Checkpoints, job: str, state: TrainingState, position: Position, *, is_alone: bool
    ) -> None:
        self._options, self._folder = options, options.path
        self._job = job
        self._state, self._position = state, position
        self._is_alone = is_alone
        self._writing: Future[None] | None = None
        self._copies: dict[str, torch.Tensor] = {}
        # The last checkpoint that this process has written: its step, when it was on disk, and how long it took.
        self._saved: tuple[int, float, float] | None = None
        # Step of the checkpoint that was left out, and its ranks; and what tells this process's unfinished folders from others.
        self._left_out: tuple[int, int] | None = None
        self._token = secrets.token_hex(8)
        # What is in the folder when this process begins: names of damaged checkpoints, and the runs that were there before.
        self._damaged: set[str] = set()
        self._runs: set[str] = set()
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Open the folder.

        Raises:
            ConfigError: The folder cannot be written, or another process is alone in it; or the state cannot be written.
        """
        self._state.check()
        with ExitStack() as running:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._folder):
                    pass
                if self._is_alone:
                    what = f"checkpoint folder {self._folder}"
                    running.enter_context(closing(Lock(self._folder / ".lock", what)))
            except OSError as error:
                raise ConfigError(
                    f"cannot write in checkpoint folder {self._folder}: {error.strerror or error}; use another folder"
                ) from None
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

    # --- Load ---

    def load(self) -> None:
        """Load the newest checkpoint that is whole; without any, do nothing.

        Raises:
            ConfigError: It is of another job, other data, another model or another version, or cannot be read.
            DamagedError: There are checkpoints, and none is whole.
        """
        trouble: DamagedError | None = None
        while steps := steps_in(set(os.listdir(self._folder)) - self._damaged):
            path = self._folder / name_of(steps[0])
            try:
                facts = verified_facts(path)
                self._check(path, facts)
                self._load(path)
            except (DamagedError, OSError) as error:
                # A job that runs, and that this process joins, deletes old ones once there is a newer one.
                if not os.path.lexists(path):
                    continue
                if isinstance(error, OSError):
                    # It may be whole, so an older one must not replace it.
                    raise ConfigError(
                        f"cannot read checkpoint {path}: {error}; begin once it can be read, or move it away"
                    ) from None
                logger.error("%s", error)
                trouble = trouble or error
                self._damaged.add(path.name)
            else:
                if trouble is not None:
                    logger.error("the job begins with checkpoint %s, which is whole", path)
                self._position.resumed()
                break
        else:
            if trouble is not None:
                raise DamagedError(
                    f"no checkpoint in {self._folder} is whole: {trouble}; move them away to begin at the first step"
                )
        self._runs = {self._run_of(step) for step in steps_in(os.listdir(self._folder))}

    def _check(self, path: Path, facts: dict[str, Any]) -> None:
        for name, have in {"job": self._job, **self._position.contract()}.items():
            # Files of before there were switches say nothing of them.
            if (saved := facts.get(name, "")) != have:
                raise ConfigError(
                    f"checkpoint {path} has {name}={saved!r}, and this job {have!r}: give each job a folder of its own, "
                    "or go on with what it had"
                )

    def _load(self, path: Path) -> None:
        try:
            load_state(path, self._state)
        except DamagedError:
            raise
        except (ConfigError, WireError) as error:
            raise ConfigError(f"checkpoint {path} does not fit this training: {error}") from error

    def _run_of(self, step: int) -> str:
        """Return the run that has written a checkpoint; "" if that cannot be read."""
        with suppress(OSError, ValueError, KeyError):
            return str(read_facts(self._folder / name_of(step))["run"])
        return ""

    # --- Write ---

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
        began_s, position = time.perf_counter(), self._position
        facts = {
            "job": self._job,
            "step": step,
            "run": position.run,
            "parent": position.parent,
            "size": size,
            **position.contract(),
            "torch": torch.__version__,
        }
        try:
            text, self._copies = self._state.snapshot(self._copies)
            copied_ms = 1e3 * (time.perf_counter() - began_s)
            logger.info("the state of step %d was copied for its checkpoint in %.0f ms", step, copied_ms)
            self._writing = self._threads.submit(self._write, facts, text, self._copies)
        except Exception as error:  # of the user's state_dict, too
            logger.error("the checkpoint of step %d is not written: %s", step, error)

    def _write(self, facts: dict[str, Any], text: bytes, tensors: dict[str, torch.Tensor]) -> None:
        step, began_s = facts["step"], time.monotonic()
        path, partial = self._folder / name_of(step), self._folder / partial_name(step, self._token)
        try:
            # Another rank may have written them anew since.
            self._damaged = {name for name in self._damaged if self._is_damaged(name)}
            self._check_owner(facts)
            # What a process has left that died counts for the space that is free.
            for name in unfinished(os.listdir(self._folder), step - 1):
                with _logged(self._folder / name):
                    self._remove(name)
            self._check_space(len(text) + sum(tensor.nbytes for tensor in tensors.values()))
            write_checkpoint(partial, facts, text, tensors)
            if path.name in self._damaged:
                self._remove(path.name)
                self._damaged.remove(path.name)
            publish_folder(partial, path)
        except Exception as error:
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
        with _logged("old checkpoints"):
            # What was being deleted comes before what is to get its name.
            names, options = os.listdir(self._folder), self._options
            for name in sorted(outdated(names, step, options.keep, self._damaged, options.stays)):
                with _logged(self._folder / name):
                    self._remove(name)

    def _is_damaged(self, name: str) -> bool:
        try:
            verified_facts(self._folder / name)
        except (DamagedError, OSError):
            return True
        return False

    def _check_owner(self, facts: dict[str, Any]) -> None:
        """Refuse a folder in which another run writes, too.

        A process of an earlier run that wakes up finds the checkpoints of the run that has gone on in its place.
        """
        for step in steps_in(set(os.listdir(self._folder)) - self._damaged)[:1]:
            run = self._run_of(step)
            if run not in {facts["run"], facts["parent"], *self._runs}:
                raise ConfigError(
                    f"{self._folder / name_of(step)} is of run {run or '?'}, and this is run {facts['run']}: another run writes "
                    "in this folder, too; give each job a folder of its own, and end one of two runs of a job"
                )

    def _check_space(self, n_bytes: int) -> None:
        """Refuse to fill a disk, which would also stop others that write to it."""
        usage = shutil.disk_usage(self._folder)
        # Some network file systems do not say how large they are.
        if usage.total and usage.free < n_bytes:
            raise OSError(
                f"{self._folder} has {usage.free / 1e6:,.0f} MB of free space, and it needs {n_bytes / 1e6:,.0f} MB; delete other files, "
                "or keep fewer checkpoints"
            )

    def _remove(self, name: str) -> None:
        """Delete a folder; a crash leaves it as it is, or with a name that is no checkpoint's."""
        trash = self._folder / f"{TRASH}{name.removeprefix(TRASH)}"
        with suppress(FileNotFoundError):
            (self._folder / name).rename(trash)
            if trash.is_dir() and not trash.is_symlink():
                shutil.rmtree(trash)
            else:
                trash.unlink()


@contextmanager
def _logged(what: object) -> Iterator[None]:
    """Log that something cannot be deleted, and go on."""
    try:
        yield
    except OSError as error:
        logger.error("%s cannot be deleted: %s", what, error)
