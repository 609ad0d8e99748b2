"""Hooks: what is done before or after the main part of a call. Here they are only declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from .roles import Placement

__all__ = [
    "Evaluate",
    "Hook",
    "Load",
    "LoadRows",
    "LoadState",
    "Offload",
    "ParamRealloc",
    "Publish",
    "Save",
    "SaveState",
    "UserHook",
    "evaluate",
    "hook",
    "offload",
    "param_realloc",
    "publish",
    "save",
    "transfers",
]


@dataclass(frozen=True)
class Hook:
    """One hook.

    Attributes:
        roles: Roles that take part; empty for that of the function.
        every: Interval, in calls of the function: the hook runs with each `every`-th call, counted from 1.
    """

    roles: tuple[Placement, ...] = ()
    every: int = 1

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Offload(Hook):
    """Moves the tensors of a role to the memory of the host."""


@dataclass(frozen=True)
class Publish(Hook):
    """Copies weights from the role of the function to one that follows it."""


@dataclass(frozen=True)
class Evaluate(Hook):
    """Calls the method `evaluate` of the role; its numbers are added to the result of the call."""


@dataclass(frozen=True)
class Save(Hook):
    """Saves modules and optimizers of the role."""

    folder: Path = Path()


@dataclass(frozen=True)
class Load(Hook):
    """Loads what `Save` has written last."""

    folder: Path = Path()


@dataclass(frozen=True)
class SaveState(Hook):
    """Saves for a journal what roles of one worker have beside modules and optimizers; `folder` is of this worker."""

    folder: Path = Path()

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return "save_state"


@dataclass(frozen=True)
class LoadState(Hook):
    """Loads what `SaveState` has saved."""

    folder: Path = Path()

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return "load_state"


@dataclass(frozen=True)
class LoadRows(Hook):
    """Has one worker read values of a column from a file of a journal, and keep them.

    Attributes:
        path: Path of the file.
        column: Column of the values.
        pieces: Numbers of the pieces of the file that are read.
        groups: First ids of the groups that are wanted of these pieces.
    """

    path: Path = Path()
    column: str = ""
    pieces: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return "load_rows"


@dataclass(frozen=True)
class ParamRealloc(Hook):
    """Mixes the weights of a role into those of another one: target = (1 - eta) * target + eta * source."""

    eta: float = 1.0

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return "param_realloc"


@dataclass(frozen=True)
class UserHook(Hook):
    """Calls a function of the user's with the objects of the roles."""

    function: Callable[..., object] = print

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return getattr(self.function, "__name__", "hook")


def transfers(hook: Hook, owner: Placement | None) -> list[tuple[Placement, Placement]]:
    """Return which roles get weights of which other ones in a hook: pairs of source and target.

    Args:
        hook: Hook that is asked about.
        owner: Role of the function; None for hooks that were posted by hand, and functions without a role.
    """
    match hook:
        case Publish():
            return [(to.follows or owner or to, to) for to in hook.roles]
        case ParamRealloc():
            return [(hook.roles[0], hook.roles[1])]
    return []


def offload(role: Placement, *, every: int = 1) -> Offload:
    """Return a hook that moves the tensors of a role to the CPU; each function of the role that runs later moves them back.

    Raises:
        ConfigError: `every` is below 1.
    """
    return Offload((role,), _checked(every))


def publish(*to: Placement) -> Publish:
    """Return a hook that copies the weights of the function's role to roles that follow it, and to all replicas of pools.

    Raises:
        ConfigError: no role is given.
    """
    if not to:
        raise ConfigError("publish has no role to publish to")
    return Publish(tuple(one for role in to for one in role.replicas or (role,)))


def evaluate(role: Placement | None = None, *, every: int = 1) -> Evaluate:
    """Return a hook that calls `evaluate()` of a role; its dict of numbers is added to the call's result.

    Args:
        role: None for that of the function.
        every: see `Hook`.

    Raises:
        ConfigError: `every` is below 1.
    """
    return Evaluate(() if role is None else (role,), _checked(every))


def save(folder: str | Path, *, every: int = 1) -> Save:
    """Return a hook that saves modules and optimizers of the function's role with torch.distributed.checkpoint.

    Args:
        folder: gets a folder `ROLE/step-N` each time, under its name only when it is complete.
        every: calls from one time to the next.

    Raises:
        ConfigError: `every` is below 1.
    """
    return Save((), _checked(every), Path(folder))


def param_realloc(source: Placement, target: Placement, *, eta: float = 1.0, every: int = 1) -> ParamRealloc:
    """Return a hook that sets target = (1 - eta) * target + eta * source for all parameters, by `lerp_`.

    Raises:
        ConfigError: the roles are the same, `eta` is not above 0 and up to 1, or `every` is below 1.
    """
    if source is target:
        raise ConfigError(f"param_realloc from {source.name!r} to itself")
    if not 0 < eta <= 1:
        raise ConfigError(f"param_realloc has eta {eta}; need above 0, up to 1")
    return ParamRealloc((source, target), _checked(every), eta)


def hook(function: Callable[..., object], *, on: Iterable[Placement] = (), every: int = 1) -> UserHook:
    """Return a hook that calls a function of the user's.

    Args:
        function: called with the objects of the roles, in their order.
        on: the roles; default: that of the function the hook belongs to.
        every: calls from one time to the next.

    Raises:
        ConfigError: `every` is below 1, or the function is not callable.
    """
    if not callable(function):
        raise ConfigError(f"hook of {function!r}, which cannot be called")
    return UserHook(tuple(on), _checked(every), function)


def _checked(every: int) -> int:
    if every < 1:
        raise ConfigError(f"every is {every}; it counts calls, from 1")
    return every
