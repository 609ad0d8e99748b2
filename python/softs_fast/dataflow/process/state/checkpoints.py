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
from torch import Tensor

from ....durable import verify_manifest, write_manifest
from ....errors import ConfigError, FlowError
from ....user_code import reason_of_error
from ...declare.roles import Role
from . import files
from .optimizer_states import OptimizerState, give_state, take_state, templates

__all__ = ["last_checkpoint", "load", "save"]

#: Files of a checkpoint with what optimizers have beside tensors, one of each worker.
_REST = "optimizers-"
#: What a worker says of why it could not write, bytes.
_MOST_TEXT = 512


def last_checkpoint(name: str, folder: Path) -> tuple[int, Path]:
    """Return the number of the step of the last checkpoint of a role, from 1, and its folder.

    Args:
        name: Name of the role.
        folder: Folder that the hook `save` was given.

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
        name: Name of the role.
        role: Object of the role.
        folder: Folder that the hook `save` was given.
        group: Process group of the workers of the role, all of which call this; None: there is one.

    Raises:
        ConfigError: there is none.
        DamagedError: a file of it is missing, cut short or altered.
        FlowError: an optimizer has other parameters than the one that was saved.
    """
    step, path = last_checkpoint(name, folder)
    verify_manifest(path, f"checkpoint {path}")
    if group is None and _is_empty(role):
        return step
    import torch.distributed.checkpoint as dcp

    parameters, optimizers = _parameters(role), role.optimizers()
    rest: dict[str, Any] = {}
    for one in path.glob(f"{_REST}*"):
        for key, value in files.read(one).items():
            _merge(rest.setdefault(key, {}), value)
    lacking = [f"{name}.{one}" for one in optimizers if one not in rest]
    if lacking:
        raise FlowError(f"checkpoint {path} has no optimizer {', '.join(lacking)}")
    own = {key: one.state_dict() for key, one in role.modules().items()}
    saved: dict[str, list[Any]] = {}
    metadata = dcp.FileSystemReader(path).read_metadata()
    for key, where in metadata.planner_data.items():
        if where[0] == "optimizers":
            saved.setdefault(where[1], []).append((where[2:], metadata.state_dict_metadata[key]))
        elif group is None and where[1] in own and where[2] not in own[where[1]]:
            # torch.distributed.checkpoint would leave it out. Stages of a pipeline have parts of a module.
            raise FlowError(
                f"checkpoint {path} has {where[1]}.{where[2]}, which {name} lacks after setup; make it in setup"
            )
    state = {
        "modules": own,
        "optimizers": {key: templates(parameters, saved.get(key, ())) for key in optimizers},
    }
    with _single_process():
        dcp.load(state, checkpoint_id=path, process_group=group, no_dist=group is None)
    for key, module in role.modules().items():
        module.load_state_dict(state["modules"][key])
    for key, one in optimizers.items():
        give_state(f"{name}.{key}", one, parameters, OptimizerState(state["optimizers"][key], rest[key]))
    return step


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Add what another worker has written: options of groups, and values by the names of parameters."""
    for key, value in more.items():
        if isinstance(value, list):
            into.setdefault(key, []).extend(value)
        else:
            into.setdefault(key, {}).update(value)


def save(name: str, role: Role, folder: Path, step: int, group: Any = None) -> None:
    """Save a role; its folder gets its name only when it is complete, and then has it when this returns.

    Args:
        name: Name of the role.
        role: Object of the role.
        folder: Folder that gets the checkpoint in `NAME/step-STEP`.
        step: Number of the step, from 1.
        group: Process group of the workers of the role, all of which call this; None: there is one.

    Raises:
        OSError: it cannot be written.
        FlowError: another worker of the role could not write it, or an optimizer has a state that cannot be saved.
    """
    final = folder / name / f"step-{step}"
    partial = final.with_name(f".{final.name}.partial")
    replaced = final.with_name(f".replaced-{final.name}")

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def end() -> None:
        write_manifest(partial)
        if final.exists():
            # It is removed last, as that takes long: a process that ends meanwhile leaves one of the two.
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        partial.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)

    # All are here before the first one may fail: the master tells workers that have not begun a failed call to leave it out.
    _by_all(group, lambda: None, final)
    _by_first(group, begin, final)
    if group is None and _is_empty(role):
        end()
        return
    import torch.distributed.checkpoint as dcp

    parameters = _parameters(role)
    states: dict[str, OptimizerState] = {}

    def write_rest() -> None:
        for key, module in role.modules().items():
            if any(type(one).__name__ == "FullyShardedDataParallel" for one in module.modules()):
                raise FlowError(
                    f"{name}.{key} is of FullyShardedDataParallel: its optimizers have pieces of several parameters at "
                    "once; use fully_shard"
                )
        for key, one in role.optimizers().items():
            states[key] = take_state(f"{name}.{key}", one, parameters, is_shared=group is not None)
        if states:
            rank = 0 if group is None else torch.distributed.get_rank(group)
            rest = {key: one.rest for key, one in states.items()}
            files.write(partial / f"{_REST}{rank}.pt", f"the optimizers of role {name!r}", rest)

    _by_all(group, write_rest, final)
    state = {
        "modules": {key: one.state_dict() for key, one in role.modules().items()},
        "optimizers": {key: one.tensors for key, one in states.items()},
    }
    with _single_process():
        dcp.save(state, checkpoint_id=partial, process_group=group, no_dist=group is None)
    _by_first(group, end, final)


def _by_first(group: Any, action: Callable[[], None], folder: Path) -> None:
    """Have the first worker do something while the others wait; if it fails, all fail, and none waits on."""
    if group is None:
        action()
        return
    import torch.distributed as dist

    error: BaseException | None = None
    said = torch.zeros(_MOST_TEXT, dtype=torch.uint8, device="cpu")
    if dist.get_rank(group) == 0:
        try:
            action()
        except BaseException as caught:
            error = caught
            text = reason_of_error(error).encode()[:_MOST_TEXT]
            said[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    dist.broadcast(said, src=dist.get_global_rank(group, 0), group=group)
    if error is not None:
        raise error
    if said.any():
        text = bytes(said.tolist()).rstrip(b"\0")
        raise FlowError(f"{folder} is not written: {text.decode(errors='replace')}")


def _by_all(group: Any, action: Callable[[], None], folder: Path) -> None:
    """Have all workers do something; if it fails on one, it fails on all before they wait for each other."""
    error: BaseException | None = None
    try:
        action()
    except BaseException as caught:
        error = caught
    n_failed = torch.tensor([int(error is not None)], device="cpu")
    if group is not None:
        torch.distributed.all_reduce(n_failed, group=group)
    if error is not None:
        raise error
    if n_failed.item():
        raise FlowError(f"{folder} is not written: another worker of the role cannot save its optimizers")


@contextlib.contextmanager
def _single_process() -> Iterator[None]:
    """Leave out a warning of torch: saving from one process is what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _is_empty(role: Role) -> bool:
    """Return whether a role has no modules and no optimizers: its checkpoint is a folder without files."""
    return not (role.modules() or role.optimizers())


def _parameters(role: Role) -> dict[str, Tensor]:
    """Return the parameters of all modules of a role by name, each once."""
    named = {
        f"{name}.{own}": parameter
        for name, module in role.modules().items()
        for own, parameter in module.named_parameters()
    }
    return dict({id(one): (name, one) for name, one in reversed(named.items())}.values())
