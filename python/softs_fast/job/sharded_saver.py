"""The checkpoints of a job in which each rank has a part of the weights, with torch.distributed.checkpoint."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any, Self

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from ..coordination.job import Saved
from ..coordination.node import TrainingState
from ..errors import ConfigError
from .checkpoint_files import write_facts, write_state
from .checkpoint_folder import CheckpointFolder
from .checkpoints import Checkpoints
from .peers import Peers
from .position import Position
from .saver import load_whole

__all__ = ["ShardedSaver"]

logger = logging.getLogger(__name__)

#: Folder of model and optimizer in that of a checkpoint.
_PARTS = "dcp"


class ShardedSaver:
    """Loads and writes checkpoints of which each rank has a part; all ranks wait until one is on disk.

    Args:
        options: Folder, and how often.
        job: Name of the job.
        state: State of the training, which carries the position.
        position: Position in the samples.
        peers: Ranks of the job.
    """

    def __init__(
        self, options: Checkpoints, job: str, state: TrainingState, position: Position, peers: Peers
    ) -> None:
        self._options, self._position, self._peers = options, position, peers
        self._folder = CheckpointFolder(options, job, position, "sharded", peers, is_alone=True)
        # What no rank has whole, and what each one has.
        self._state, self._others = state, state.others()

    def __enter__(self) -> Self:
        """Open the folder.

        Raises:
            ConfigError: The folder cannot be written, or another process is in it; or the state cannot be written.
        """
        self._others.check()
        self._folder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let others use the folder."""
        self._folder.__exit__(kind, error, trace)

    def load(self) -> None:
        """Load the newest checkpoint that is whole, of any number of ranks; without any, do nothing. A call of all ranks.

        Raises:
            ConfigError: It is of another job, other data, another model or another version, or cannot be read.
            DamagedError: There are checkpoints, and none is whole.
        """
        model, optimizer = self._state.model, self._state.optimizer
        parts: dict[str, Any] = {}

        def prepare(path: Path) -> None:
            with _fitting(path):
                # The optimizer gets its tensors here, to be loaded into.
                parts.update(self._parts())
                _fit(parts, dcp.FileSystemReader(path / _PARTS).read_metadata().state_dict_metadata)

        def take(path: Path) -> None:
            with _fitting(path):
                dcp.load(parts, checkpoint_id=path / _PARTS, process_group=self._peers.group)
                with _with_dtypes(optimizer), _without_hooks(optimizer):
                    set_state_dict(
                        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
                    )
            load_whole(path, self._others)

        self._folder.load(prepare, take)

    def committed(self, rank: int, size: int) -> None:
        """Write the checkpoint of the step that was committed, if it is due; a call of all ranks.

        What cannot be written is logged, and training goes on.
        """
        step, began_s = self._position.committed, time.monotonic()
        if step % self._options.every:
            return
        facts, partial = self._folder.facts(size), self._folder.partial(step)
        is_first, done = rank == 0, self._folder.done
        parts: dict[str, Any] = {}

        def begin() -> None:
            optimizer = self._state.optimizer
            is_new = not optimizer.state
            parts.update(self._parts())
            if is_new:
                # What it has now is of the step that torch has made, which would count as one of the training.
                optimizer.state.clear()
                parts["optimizer"]["state"] = {}
            if is_first:
                tensors = [one for one in _flat(parts).values() if isinstance(one, torch.Tensor)]
                self._folder.make_room(facts, sum(one.numel() * one.element_size() for one in tensors))
                partial.mkdir()

        def write() -> None:
            try:
                dcp.save(parts, checkpoint_id=partial / _PARTS, process_group=self._peers.group)
            except CheckpointException as error:
                raise OSError(str(error)) from error

        def seal() -> None:
            write_state(partial, *self._others.snapshot({}))
            write_facts(partial, facts)
            self._folder.seal(partial, step)

        if done(step, True, begin) and done(step, True, write) and done(step, is_first, seal):
            logger.info("the checkpoint of step %d: %.0f ms", step, 1e3 * (time.monotonic() - began_s))
        elif is_first:
            shutil.rmtree(partial, ignore_errors=True)

    def saved(self) -> Saved | None:
        """Return nothing: there is no coordinator to be told."""
        return None

    def _parts(self) -> dict[str, Any]:
        with _without_hooks(self._state.optimizer):
            model, optimizer = get_state_dict(self._state.model, self._state.optimizer)
        return {"model": model, "optimizer": optimizer}


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Say of which checkpoint torch says that it does not fit."""
    try:
        yield
    except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"checkpoint {path} does not fit this training: {error}") from error


@contextmanager
def _with_dtypes(optimizer: Optimizer) -> Iterator[None]:
    """Have an optimizer keep its tensors that torch casts to the dtype of their parameter, such as `mu_product` of NAdam."""
    filled = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    yield
    for parameter, state in optimizer.state.items():
        for name, one in state.items():
            own = filled.get(parameter, {}).get(name)
            if isinstance(own, torch.Tensor) and own.dtype is not one.dtype:
                state[name] = own


@contextmanager
def _without_hooks(optimizer: Optimizer) -> Iterator[None]:
    """Have hooks not see the step that torch makes, without effect, to learn what tensors an optimizer has."""
    # Of a scheduler, which replaces it to see steps, too.
    own = vars(optimizer).get("step")
    step = type(optimizer).step
    optimizer.step = MethodType(getattr(step, "__wrapped__", step), optimizer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del optimizer.step
        if own is not None:
            optimizer.step = own  # type: ignore[method-assign]


def _fit(parts: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Prepare tensors to be loaded into: of a parameter that was not trained yet, the optimizer has none.

    Args:
        parts: Tensors of model and optimizer.
        saved: What the checkpoint has, by name, as torch.distributed.checkpoint describes it.

    Raises:
        ConfigError: The checkpoint has other tensors; the text names one.
    """
    states = parts["optimizer"]["state"]
    for name in (one for group in parts["optimizer"]["param_groups"] for one in group["params"]):
        keys = _flat(states.get(name, {}))
        if not any(f"optimizer.state.{name}.{key}" in saved for key in keys):
            states[name] = {}
    have = {name: _described(one) for name, one in _flat(parts).items()}
    found = {name: _described(one) for name, one in saved.items()}
    for name in sorted({*have, *found}):
        if name.startswith(("model.", "optimizer.state.")) and have.get(name) != found.get(name):
            raise ConfigError(
                f"it has {found.get(name, 'no')} {name}, and this training {have.get(name, 'none')}"
            )


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a tree by the names that torch.distributed.checkpoint gives them."""
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(tree)
    return planner.state_dict


def _described(one: Any) -> str:
    if isinstance(one, TensorStorageMetadata):
        return f"{one.properties.dtype} {list(one.size)}"
    return f"{one.dtype} {list(one.shape)}" if isinstance(one, torch.Tensor) else "plain"
