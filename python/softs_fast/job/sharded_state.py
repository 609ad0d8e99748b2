"""The state of a job in which each rank has a part of the weights, as files of torch.distributed.checkpoint: all ranks write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from .. import kernels
from ..coordination.node import Stateful, TrainingState
from ..durable import Facts, facts_of
from ..errors import ConfigError
from ..tensors import is_distributed
from ..tensors.optimizers import OptimizerState, give_state, take_state, templates
from ..user_code import text_of_error
from .checkpoint_files import load_state, write_state
from .checkpoint_folder import Layout
from .peers import Peers

__all__ = ["ShardedState"]

#: Folder of what is in parts, in that of a checkpoint; and there the optimizer.
_PARTS, _OPTIMIZER = "dcp", "optimizer"


class ShardedState:
    """Copies, writes and loads a state of which each rank has a part.

    What has a DTensor in its state, such as the model, is written by all ranks, and so are the tensors of the optimizer; all
    else by rank 0.

    Args:
        state: State of the training, which carries the position.
        peers: Ranks of the job.

    Attributes:
        layout: Layout of the files.
        peers: Ranks that agree on a checkpoint between two steps.
        writers: The same ranks, for their threads that write one; a group of its own, as steps use the other one meanwhile.

    Raises:
        ConfigError: There is a second optimizer: its state would be in parts, too.
    """

    layout: Layout = "sharded"

    def __init__(self, state: TrainingState, peers: Peers) -> None:
        self.peers, self.writers = peers, Peers()
        self._optimizer = state.optimizer
        # Between a forward and a backward pass the modules of FSDP2 show other ones.
        self._parameters = dict(state.model.named_parameters())
        self._values = _Values()
        others = state.parts
        self._sharded: dict[str, Stateful] = {}
        for name, part in state.parts.items():
            if part is state.optimizer:
                others[name] = self._values
            elif isinstance(part, Optimizer):
                raise ConfigError(
                    f'"{name}" is a second optimizer, and the model is sharded: train it with one optimizer, of several groups'
                )
            elif _has_parts(part.state_dict()):
                self._sharded[name] = others.pop(name)
        self._others = state.only(others)
        # What is being loaded, and the last copy.
        self._loaded: dict[str, Any] = {}
        self._copies: dict[str, Any] = {}
        self._text, self._whole = b"", dict[str, torch.Tensor]()

    def check(self) -> None:
        """Check that the state can be written.

        Raises:
            ConfigError: A part of it cannot; the text names it.
        """
        self._take_optimizer()
        self._others.check()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have the state ready to be written in a block; a call of all ranks."""
        self.writers = Peers.of_process()
        try:
            yield
        finally:
            self.writers.close()

    def loads(self) -> list[Callable[[Path], None]]:
        """Return what loads a verified checkpoint, for `CheckpointFolder.load`; it may be of any number of ranks."""
        return [self._prepare, self._load]

    def _prepare(self, path: Path) -> None:
        load_state(path, self._others)
        with _fitting(path):
            metadata = dcp.FileSystemReader(path / _PARTS).read_metadata()
            places, saved = metadata.planner_data, metadata.state_dict_metadata
            self._loaded = {name: part.state_dict() for name, part in self._sharded.items()}
            _check_fits(
                _flat(self._loaded),
                {name: one for name, one in saved.items() if places[name][0] in self._loaded},
            )
            optimizer = (
                (places[name][1:], one) for name, one in saved.items() if places[name][0] == _OPTIMIZER
            )
            self._loaded[_OPTIMIZER] = templates(self._parameters, optimizer)

    def _load(self, path: Path) -> None:
        loaded = self._loaded
        with _fitting(path):
            dcp.load(loaded, checkpoint_id=path / _PARTS, process_group=self.peers.group)
            for name, part in self._sharded.items():
                part.load_state_dict(loaded[name])
            state = OptimizerState(loaded[_OPTIMIZER], self._values.value)
            give_state("the optimizer", self._optimizer, self._parameters, state)

    def copy(self) -> None:
        """Copy this rank's part into memory that is kept.

        Raises:
            ConfigError: A part of the state cannot be written; the text names it.
        """
        state = {name: part.state_dict() for name, part in self._sharded.items()}
        state[_OPTIMIZER] = self._take_optimizer()
        self._copies = _copied(state, self._copies)
        if self.peers.rank == 0:
            self._text, self._whole = self._others.snapshot(self._whole)

    @property
    def n_bytes(self) -> int:
        """Bytes of the last copy, of all ranks."""
        tensors = [*_flat(self._copies).values(), *self._whole.values()]
        return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))

    def write(self, folder: Path) -> Facts:
        """Write this rank's part of the copy; return the facts of its files. A call of all ranks.

        Raises:
            OSError: A rank cannot write.
        """
        rank, parts = self.writers.rank, folder / _PARTS
        # Copies are in host memory: to look ahead would use a device, from this thread.
        writer = dcp.FileSystemWriter(parts, per_thread_copy_ahead=0)
        try:
            dcp.save(
                self._copies,
                checkpoint_id=parts,
                storage_writer=writer,
                process_group=self.writers.group,
                no_dist=self.writers.group is None,
            )
        except CheckpointException as error:
            raise OSError(_said(error)) from error
        # Not before the calls of all ranks: if it fails, the others would wait in them.
        if rank == 0:
            write_state(folder, self._text, self._whole)
        return facts_of(folder, [f"{_PARTS}/{one.name}" for one in parts.glob(f"__{rank}_*")])

    def _take_optimizer(self) -> dict[str, dict[str, torch.Tensor]]:
        state = take_state("the optimizer", self._optimizer, self._parameters, is_shared=True)
        self._values.value = state.rest
        return state.tensors


class _Values:
    """The plain values of the optimizer, which all ranks have."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.value

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state


def _has_parts(tree: Any) -> bool:
    """Return whether there is a DTensor in a state, where torch.distributed.checkpoint looks for one."""
    if isinstance(tree, Mapping):
        return any(map(_has_parts, tree.values()))
    return any(map(_has_parts, tree)) if isinstance(tree, list) else is_distributed(tree)


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Say of which checkpoint torch says that it does not fit."""
    try:
        yield
    except CheckpointException as error:
        if any(isinstance(failure, KeyboardInterrupt) for failure, _ in error.failures.values()):
            raise KeyboardInterrupt from error
        raise ConfigError(f"checkpoint {path} does not fit this training: {_said(error)}") from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"checkpoint {path} does not fit this training: {error}") from error


def _said(error: CheckpointException) -> str:
    """Return what has failed on which rank, without the traces of all."""
    return "; ".join(f"rank {rank}: {text_of_error(one)}" for rank, (one, _) in error.failures.items())


def _check_fits(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other tensors.

    Args:
        own: What this training has in parts, but for the optimizer.
        saved: What the checkpoint has, by name, as torch.distributed.checkpoint describes it.

    Raises:
        ConfigError: They differ; the text names one.
    """
    have = {name: _described(one) for name, one in own.items()}
    found = {name: _described(one) for name, one in saved.items()}
    for name in sorted({*have, *found}):
        if have.get(name) != found.get(name):
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


def _copied(one: Any, before: Any) -> Any:
    """Return a copy of a tree, with tensors in host memory: that of an earlier copy where it fits, as new memory costs more."""
    if isinstance(one, torch.Tensor):
        if isinstance(before, torch.Tensor) and (before.shape, before.dtype) == (one.shape, one.dtype):
            kernels.copy(one.detach(), before)
            return before
        return one.detach().to("cpu", copy=True)
    if isinstance(one, dict):
        earlier = before if isinstance(before, dict) else {}
        return {name: _copied(value, earlier.get(name)) for name, value in one.items()}
    if isinstance(one, list):
        kept = before if isinstance(before, list) and len(before) == len(one) else [None] * len(one)
        return [_copied(value, of_it) for value, of_it in zip(one, kept, strict=True)]
    return copy.deepcopy(one)
