"""The folder of a job's checkpoints: which one the job begins with, and how a new one comes into it."""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from ..durable import Lock, publish_folder, verify_manifest
from ..errors import ConfigError, DamagedError
from .checkpoint_files import read_facts
from .checkpoints import Checkpoints
from .peers import Peers
from .position import Position
from .retention import TRASH, name_of, outdated, partial_name, steps_in, unfinished

__all__ = ["CheckpointFolder", "Layout"]

logger = logging.getLogger(__name__)

#: How the files of the state are written: rank 0 writes all of it, each rank its part, or a Trainer does.
Layout = Literal["whole", "sharded", "transformers"]
# What became of a checkpoint on a rank; the ranks go by the greatest.
_TAKEN, _GONE, _DAMAGED, _REFUSED = range(4)


class CheckpointFolder:
    """Checkpoints in a folder that all ranks see; the newest whole one is what the job begins with.

    Args:
        options: Folder, and how often.
        job: Name of the job.
        position: Position in the samples.
        layout: Layout of the state.
        peers: Ranks that begin together.
        is_alone: Whether these are all ranks of the job, so that no other process may use the folder.
    """

    def __init__(
        self,
        options: Checkpoints,
        job: str,
        position: Position,
        layout: Layout,
        peers: Peers,
        *,
        is_alone: bool,
    ) -> None:
        self._options, self._path = options, options.path
        self._job, self._position, self._layout = job, position, layout
        self._peers, self._is_alone = peers, is_alone
        # What tells this run's unfinished folders from others.
        self._token = ""
        # What is in the folder when this process begins: names of damaged checkpoints, and the runs that were there before.
        self._damaged: set[str] = set()
        self._runs: set[str] = set()
        self._running = ExitStack()

    def __enter__(self) -> Self:
        """Open the folder; a call of all ranks that begin together.

        Raises:
            ConfigError: The folder cannot be written, another process is alone in it, or ranks have folders of their own.
        """
        peers = self._peers
        self._token = peers.of_first(secrets.token_hex(8))
        # What a process leaves of it that dies meanwhile counts as unfinished.
        probe = self.partial(0)
        with ExitStack() as running:
            refusal: ConfigError | None = None
            try:
                self._path.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._path):
                    pass
                if self._is_alone and peers.rank == 0:
                    what = f"checkpoint folder {self._path}"
                    running.enter_context(closing(Lock(self._path / ".lock", what)))
                    self._remove_unfinished()
                    probe.touch()
            except OSError as error:
                refusal = ConfigError(
                    f"cannot write in checkpoint folder {self._path}: {error.strerror or error}; use another folder"
                )
            except ConfigError as error:
                refusal = error
            peers.agree(refusal)
            try:
                if self._is_alone and not os.path.lexists(probe):
                    refusal = ConfigError(
                        f"this rank does not see what rank 0 writes into checkpoint folder {self._path.absolute()}: all ranks "
                        "must see one folder, such as on a network file system"
                    )
                peers.agree(refusal)
            finally:
                probe.unlink(missing_ok=True)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let others use the folder."""
        self._running.__exit__(kind, error, trace)

    # --- Load ---

    def load(self, *takes: Callable[[Path], object]) -> Path | None:
        """Load the newest checkpoint that is whole, the same on all ranks; a call of all ranks.

        Args:
            takes: Load a verified one, each once all ranks have done the one before, so that one may be a call of all ranks;
                another checkpoint may follow if one raises `DamagedError`.

        Returns:
            Its folder; None if there is none.

        Raises:
            ConfigError: It is of another job, other data, another model or another version, or cannot be read; or a rank
                sees another folder.
            DamagedError: There are checkpoints, and none is whole.
        """
        trouble: DamagedError | None = None
        found: Path | None = None
        while step := int(self._peers.of_first(str(self._newest()))):
            path = self._path / name_of(step)
            # All ranks have verified it before one loads it, or refuses what may be damage that another rank finds.
            for action in (self._verify, self._check, *takes):
                kind, error = self._tried(path, action)
                if kind != _TAKEN:
                    break
            if kind == _TAKEN:
                found = path
                break
            if kind == _DAMAGED:
                error = error or DamagedError(
                    f"checkpoint {path} is damaged: the log of another rank says what is"
                )
                logger.error("%s", error)
                trouble = trouble or error
                self._damaged.add(path.name)
        if found is None and trouble is not None:
            raise DamagedError(
                f"no checkpoint in {self._path} is whole: {trouble}; move them away to begin at the first step"
            )
        if found is not None:
            if trouble is not None:
                logger.error("the job begins with checkpoint %s, which is whole", found)
            self._position.resumed()
        self._runs = {self._run_of(step) for step in steps_in(os.listdir(self._path))}
        return found

    def _newest(self) -> int:
        return max(steps_in(set(os.listdir(self._path)) - self._damaged), default=0)

    def _tried(self, path: Path, action: Callable[[Path], object]) -> tuple[int, DamagedError | None]:
        """Do something with a checkpoint; return what became of it on all ranks, and this rank's error if it is damaged.

        Raises:
            ConfigError: A rank refuses it.
        """
        kind, refusal, damage = _TAKEN, None, None
        try:
            action(path)
        except (ConfigError, OSError, ValueError, KeyError) as error:
            if not os.path.lexists(path):
                # A job that runs, and that this process joins, deletes old ones once there is a newer one.
                kind = _GONE if self._peers.size == 1 else _REFUSED
                refusal = ConfigError(
                    f"this rank does not see checkpoint {path} of rank 0: all ranks must see one folder"
                )
            elif isinstance(error, DamagedError):
                kind, damage = _DAMAGED, error
            elif isinstance(error, ConfigError):
                kind, refusal = _REFUSED, error
            elif isinstance(error, OSError):
                # It may be whole, so an older one must not replace it.
                kind = _REFUSED
                refusal = ConfigError(
                    f"cannot read checkpoint {path}: {error}; begin once it can be read, or move it away"
                )
            else:
                kind, damage = (
                    _DAMAGED,
                    DamagedError(f"checkpoint {path} is damaged: {error!r}; use an older one"),
                )
        worst = self._peers.largest(kind)
        if worst == _REFUSED:
            raise refusal or ConfigError(f"another rank refuses checkpoint {path}; its error says why")
        return worst, damage

    def _verify(self, path: Path) -> None:
        # Each rank verifies some of the files.
        verify_manifest(path, f"checkpoint {path}", (self._peers.rank, self._peers.size))

    def _check(self, path: Path) -> None:
        facts = read_facts(path)
        for name, have in {"job": self._job, "layout": self._layout, **self._position.contract()}.items():
            # Files of before there were switches, or layouts, say nothing of them.
            if (saved := facts.get(name, _BEFORE.get(name))) != have:
                raise ConfigError(
                    f"checkpoint {path} has {name}={saved!r}, and this job {have!r}: give each job a folder of its own, "
                    "or go on with what it had"
                )

    def _run_of(self, step: int) -> str:
        """Return the run that has written a checkpoint; "" if that cannot be read."""
        with suppress(OSError, ValueError, KeyError):
            return str(read_facts(self._path / name_of(step))["run"])
        return ""

    # --- Write ---

    def facts(self, size: int) -> dict[str, Any]:
        """Return what a checkpoint of the present step says of itself."""
        position = self._position
        return {
            "job": self._job,
            "layout": self._layout,
            "step": position.committed,
            "run": position.run,
            "parent": position.parent,
            "size": size,
            **position.contract(),
            "torch": torch.__version__,
        }

    def partial(self, step: int) -> Path:
        """Return the folder in which the checkpoint of a step is written."""
        return self._path / partial_name(step, self._token)

    def make_room(self, facts: dict[str, Any], n_bytes: int = 0) -> None:
        """Prepare for a checkpoint: remove what was left unfinished.

        Raises:
            ConfigError: Another run writes in the folder, too.
            OSError: The disk has less free space than the checkpoint needs.
        """
        # Another rank may have written them anew since.
        self._damaged = {name for name in self._damaged if self._is_damaged(name)}
        self._check_owner(facts)
        # What a process has left that died counts for the space that is free.
        self._remove_unfinished(facts["step"] - 1)
        self._check_space(n_bytes)

    def _remove_unfinished(self, last: float = math.inf) -> None:
        for name in unfinished(os.listdir(self._path), last):
            with _logged(self._path / name):
                self._remove(name)

    def done(self, step: int, is_own: bool, action: Callable[[], object]) -> bool:
        """Do something for the checkpoint of a step if it is this rank's; a call of all ranks.

        Returns:
            Whether all ranks have done theirs; what failed is logged.
        """
        failed = False
        try:
            if is_own:
                action()
        except Exception as error:
            failed = True
            logger.error(
                "the checkpoint of step %d is not written: %s; the one before it stays the newest",
                step,
                error,
            )
        return not self._peers.largest(failed)

    def seal(self, partial: Path, step: int) -> Path:
        """Give a folder that has its manifest the name of a checkpoint, once it is on disk; then delete outdated ones.

        Returns:
            Folder of the checkpoint.

        Raises:
            OSError: It cannot be made durable.
        """
        path = self._path / name_of(step)
        if path.name in self._damaged:
            self._remove(path.name)
            self._damaged.remove(path.name)
        publish_folder(partial, path)
        with _logged("old checkpoints"):
            # What was being deleted comes before what is to get its name.
            names, options = os.listdir(self._path), self._options
            for name in sorted(outdated(names, step, options.keep, self._damaged, options.stays)):
                with _logged(self._path / name):
                    self._remove(name)
        return path

    def _is_damaged(self, name: str) -> bool:
        try:
            verify_manifest(self._path / name, f"checkpoint {name}")
        except (DamagedError, OSError):
            return True
        return False

    def _check_owner(self, facts: dict[str, Any]) -> None:
        """Refuse a folder in which another run writes, too.

        A process of an earlier run that wakes up finds the checkpoints of the run that has gone on in its place.
        """
        for step in steps_in(set(os.listdir(self._path)) - self._damaged)[:1]:
            run = self._run_of(step)
            if run not in {facts["run"], facts["parent"], *self._runs}:
                raise ConfigError(
                    f"{self._path / name_of(step)} is of run {run or '?'}, and this is run {facts['run']}: another run writes "
                    "in this folder, too; give each job a folder of its own, and end one of two runs of a job"
                )

    def _check_space(self, n_bytes: int) -> None:
        """Refuse to fill a disk, which would also stop others that write to it."""
        usage = shutil.disk_usage(self._path)
        # Some network file systems do not say how large they are.
        if usage.total and usage.free < n_bytes:
            raise OSError(
                f"{self._path} has {usage.free / 1e6:,.0f} MB of free space, and it needs {n_bytes / 1e6:,.0f} MB; delete other files, "
                "or keep fewer checkpoints"
            )

    def _remove(self, name: str) -> None:
        """Delete a folder; a crash leaves it as it is, or with a name that is no checkpoint's."""
        trash = self._path / f"{TRASH}{name.removeprefix(TRASH)}"
        with suppress(FileNotFoundError):
            (self._path / name).rename(trash)
            if trash.is_dir() and not trash.is_symlink():
                shutil.rmtree(trash)
            else:
                trash.unlink()


#: What checkpoints have that do not say it.
_BEFORE = {"switches": "", "layout": "whole"}


@contextmanager
def _logged(what: object) -> Iterator[None]:
    """Log that something cannot be deleted, and go on."""
    try:
        yield
    except OSError as error:
        logger.error("%s cannot be deleted: %s", what, error)
