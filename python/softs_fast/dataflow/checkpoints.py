"""Checkpoints of roles: modules and optimizers, with torch.distributed.checkpoint.

That is imported by what needs it: it takes a second, in each process of a flow.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError, FlowError
from .declare.roles import Role

__all__ = ["last_checkpoint", "load", "save"]

#: What a worker says of why it could not write, bytes.
_MOST_TEXT = 512


def last_checkpoint(name: str, folder: Path) -> tuple[int, Path]:
    """Return the number of the step of the last checkpoint of a role, from 1, and its folder.

    Args:
        name: of the role.
        folder: that the hook `save` was given.

    Raises:
        ConfigError: there is none.
    """
    found: dict[int, Path] = {}
    # An old one counts if its process ended before the new one had its name.
    for prefix in (".replaced-step-", "step-"):
        paths = [(path.name.removeprefix(prefix), path) for path in (folder / name).glob(f"{prefix}*")]
        found |= {int(number): path for number, path in paths if number.isdigit()}
    if not found:
        raise ConfigError(f"{folder / name} has no checkpoint of role {name!r}")
    return max(found.items())


def load(name: str, role: Role, folder: Path, group: Any = None) -> int:
    """Load the last checkpoint of a role; returns the number of its step, from 1.

    Args:
        name: of the role.
        role: its object.
        folder: that the hook `save` was given.
        group: process group of the workers of the role, all of which call this; None: there is one.

    Raises:
        ConfigError: there is none.
    """
    step, path = last_checkpoint(name, folder)
    if group is None and _is_empty(role):
        return step
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    state, model = _state(role), nn.ModuleDict(role.modules())
    with _single_process():
        dcp.load(state, checkpoint_id=path, process_group=group, no_dist=group is None)
    model.load_state_dict(state["modules"])
    for optimizer_name, optimizer in role.optimizers().items():
        set_optimizer_state_dict(model, optimizer, state["optimizers"][optimizer_name])
    return step


def save(name: str, role: Role, folder: Path, step: int, group: Any = None) -> None:
    """Save a role; its folder gets its name only when it is complete, and then has it when this returns.

    Args:
        name: of the role.
        role: its object.
        folder: gets the checkpoint in `NAME/step-STEP`.
        step: number of the step, from 1.
        group: process group of the workers of the role, all of which call this; None: there is one.

    Raises:
        OSError: it cannot be written.
        FlowError: another worker of the role could not write it.
    """
    final = folder / name / f"step-{step}"
    partial = final.with_name(f".{final.name}.partial")
    replaced = final.with_name(f".replaced-{final.name}")

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def end() -> None:
        if final.exists():
            # It is removed last, as that takes long: a process that ends meanwhile leaves one of the two.
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        partial.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)

    _by_first(group, begin, final)
    if group is None and _is_empty(role):
        end()
        return
    import torch.distributed.checkpoint as dcp

    fresh = [one for one in role.optimizers().values() if not one.state]
    with _single_process():
        dcp.save(_state(role), checkpoint_id=partial, process_group=group, no_dist=group is None)
    for one in fresh:
        one.state.clear()  # what was made for the checkpoint would count as a step
    _by_first(group, end, final)


def _by_first(group: Any, action: Callable[[], None], folder: Path) -> None:
    """Have the first worker do something while the others wait; if it fails, all fail, and none waits on."""
    if group is None:
        action()
        return
    import torch.distributed as dist

    error: OSError | None = None
    said = torch.zeros(_MOST_TEXT, dtype=torch.uint8)
    if dist.get_rank(group) == 0:
        try:
            action()
        except OSError as caught:
            error = caught
            text = str(error).encode()[:_MOST_TEXT] or b"?"
            said[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.broadcast(said, src=dist.get_global_rank(group, 0), group=group)
    if error is not None:
        raise error
    if said.any():
        text = bytes(said.tolist()).rstrip(b"\0")
        raise FlowError(f"{folder} is not written: {text.decode(errors='replace')}")


@contextlib.contextmanager
def _single_process() -> Iterator[None]:
    """Leave out a warning of torch: saving from one process is what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _is_empty(role: Role) -> bool:
    """Return whether a role has no modules and no optimizers: its checkpoint is a folder without files."""
    return not (role.modules() or role.optimizers())


def _state(role: Role) -> dict[str, Any]:
    """Return what a checkpoint holds; the state of an optimizer that has not run yet is made, so that it can be loaded."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.ModuleDict(role.modules())
    optimizers = {name: get_optimizer_state_dict(model, one) for name, one in role.optimizers().items()}
    return {"modules": model.state_dict(), "optimizers": optimizers}
