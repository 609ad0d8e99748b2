"""Roles, where they are placed, and the functions that they offer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from ...errors import ConfigError
from .attributes import attributes_of
from .layout import DIMS, Layout
from .sums import OPS, RankGroup, weigh_gradients

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Mesh", "Placement", "Role", "RoleFunction", "place"]


@dataclass(frozen=True)
class Mesh:
    """Where an object of a role is; the names are those of torch's DeviceMesh.

    Attributes:
        name: Name of the role.
        declared: Layout of the role.
        sizes: Number of objects along each dimension of the layout: all 1 in a flow in one process, where each role
            is one object.
        ranks: Position of this object along each dimension.
        device_mesh: A `torch.distributed.device_mesh.DeviceMesh` of the role's workers; None if there is one object.
        groups: Groups that sum over ranks, for each dimension of several ranks.
    """

    name: str
    declared: Layout
    sizes: Mapping[str, int]
    ranks: Mapping[str, int] = field(default_factory=dict)
    device_mesh: Any = None
    groups: Mapping[str, RankGroup] = field(default_factory=dict, repr=False, compare=False)

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """Names of the dimensions, the outermost first."""
        return tuple(name for name, _ in self.declared.dims)

    def size(self, dim: str) -> int:
        """Return how many objects there are along a dimension; 1 if the layout does not name it."""
        return self.sizes.get(dim, 1)

    def rank(self, dim: str) -> int:
        """Return where this object is along a dimension, from 0; 0 if the layout does not name it."""
        return self.ranks.get(dim, 0)

    def get_local_rank(self, dim: str) -> int:
        """Return what `rank` does, by the name that DeviceMesh has for it."""
        return self.rank(dim)

    @overload
    def all_reduce(self, tensors: Tensor, op: str = ..., dim: str = ...) -> Tensor: ...

    @overload
    def all_reduce(self, tensors: list[Tensor], op: str = ..., dim: str = ...) -> list[Tensor]: ...

    def all_reduce(
        self, tensors: Tensor | list[Tensor], op: str = "sum", dim: str = "dp"
    ) -> Tensor | list[Tensor]:
        """Return the sum or mean of tensors over the ranks along a dimension, see docs/dataflow_workers.md, "Sums over ranks".

        Args:
            tensors: one or several on the CPU; each rank calls this with the same shapes and dtypes. float16 and bfloat16
                are summed in float32.
            op: "sum" or "mean"; integers have no mean.
            dim: pp, dp, cp, tp or ep.

        Returns:
            New tensors without gradients; what was given, if there is one rank.

        Raises:
            ConfigError: a tensor cannot be summed, or there is no such `op` or `dim`.
            FlowError: another rank does something else, or has ended.
        """
        if op not in OPS:
            raise ConfigError(f"all_reduce: op is {op!r}; need one of {', '.join(OPS)}")
        group = self._group(dim)
        if group is None:
            return tensors
        if isinstance(tensors, list):
            return group.all_reduce(tensors, op)
        return group.all_reduce([tensors], op)[0]

    def average_gradients(
        self, owner: nn.Module | Iterable[Tensor], weight: float = 1.0, *, dim: str = "dp"
    ) -> None:
        """Replace gradients by their means over the ranks along a dimension.

        With `weight=rows.weight`, and the mean over the rows of a rank as loss, these are the gradients of the mean over
        all rows, see docs/dataflow_workers.md, "Sums over ranks".

        Args:
            owner: A module, or its parameters, on the CPU; each rank calls this with the same shapes and dtypes. A parameter
                without a gradient counts as zero, and one that has none on any rank gets none.
            weight: Factor by which the gradients of this rank are multiplied; those of weight 0 count as zero.
            dim: Dimension: pp, dp, cp, tp or ep.

        Raises:
            ConfigError: a gradient cannot be averaged, or there is no such `dim`.
            FlowError: another rank does something else, or has ended.
        """
        group = self._group(dim)
        if group is None:
            weigh_gradients(owner, weight)
        else:
            group.average_gradients(owner, weight)

    def broadcast(self, owner: nn.Module | Iterable[Tensor], dim: str = "dp") -> None:
        """Set tensors to those of rank 0 along a dimension; nothing happens if there is one rank.

        Args:
            owner: a module, of which parameters and buffers are set, or tensors, on the CPU.
            dim: pp, dp, cp, tp or ep.

        Raises:
            ConfigError: a tensor is not on the CPU, or there is no such `dim`.
            FlowError: another rank does something else, or has ended.
        """
        group = self._group(dim)
        if group is not None:
            group.broadcast(owner)

    def _group(self, dim: str) -> RankGroup | None:
        if dim not in DIMS:
            raise ConfigError(f"mesh of role {self.name!r}: dim is {dim!r}; need one of {', '.join(DIMS)}")
        if self.size(dim) == 1:
            return None
        if dim not in self.groups:
            raise ConfigError(
                f"mesh of role {self.name!r}: the {self.size(dim)} ranks of {dim} have no process group"
            )
        return self.groups[dim]


class Role:
    """A model with functions on rows; what a user derives from.

    Methods that are named in `call` take rows (see `Rows`) and return a dict of columns, of numbers, or of both.
    """

    def setup(self, mesh: Mesh) -> None:
        """Make models and optimizers; called once, before any function.

        Args:
            mesh: Mesh that says where this object is.
        """

    def model_config(self) -> Any:
        """Return what a request `model_config` is answered with."""
        return None

    def modules(self) -> dict[str, Any]:
        """Return the `torch.nn.Module`s of the role by the names of their attributes, such as `net` or `nets[0]`.

        Hooks copy, save and mix their tensors. Modules in lists, tuples and dicts are found; those inside other objects
        are not, and `setup` must not leave any there. Override this to choose. Of a `DistributedDataParallel` it is the
        module inside, once for both.
        """
        from torch.nn.parallel import DistributedDataParallel

        found: dict[str, Any] = {}
        for name, value in attributes_of(self):
            if hasattr(value, "state_dict") and hasattr(value, "parameters"):
                module = value.module if isinstance(value, DistributedDataParallel) else value
                if all(module is not other for other in found.values()):
                    found[name] = module
        return found

    def optimizers(self) -> dict[str, Any]:
        """Return the optimizers of the role by the names of their attributes; they are saved with the modules."""
        found: dict[str, Any] = {}
        for name, value in attributes_of(self):
            is_optimizer = hasattr(value, "param_groups") and hasattr(value, "state_dict")
            if is_optimizer and all(value is not other for other in found.values()):
                found[name] = value
        return found


@dataclass(frozen=True, eq=False)
class Placement:
    """A role with its layout and its workers; each method of the role is an attribute of it, for `call`.

    Attributes:
        role: Class of the role.
        name: Name of the role in the flow.
        layout: Layout of its workers.
        on: Numbers of its workers.
        follows: Role of which it has the weights; None if it has its own.
        frozen: Whether its weights never change.
        replicas: Replicas of a pool, one for each worker; to hooks and workers they are roles of their own.
        pool: Name of the pool that a replica belongs to.
    """

    role: type[Role]
    name: str
    layout: Layout
    on: tuple[int, ...]
    follows: Placement | None = None
    frozen: bool = False
    replicas: tuple[Placement, ...] = ()
    pool: str = ""

    def __getattr__(self, method: str) -> RoleFunction:
        if method.startswith("_") or not callable(getattr(self.role, method, None)):
            raise AttributeError(f"role {self.name!r} ({self.role.__name__}) has no method {method!r}")
        return RoleFunction(self, method)

    def __repr__(self) -> str:
        return f"<role {self.name!r}: {'pool' if self.replicas else self.layout} on {list(self.on)}>"


@dataclass(frozen=True)
class RoleFunction:
    """A method of a placed role.

    Attributes:
        placement: Placement of the role.
        method: Name of the method.
    """

    placement: Placement = field(repr=False)
    method: str

    @property
    def name(self) -> str:
        """The name of the function in the flow: role and method."""
        return f"{self.placement.name}.{self.method}"


_OWN = ("role", "name", "layout", "on", "follows", "frozen", "replicas", "pool")


def place(
    role: type[Role],
    layout: str = "dp1",
    *,
    on: Iterable[int] | None = None,
    pool: Iterable[int] | None = None,
    follows: Placement | None = None,
    frozen: bool = False,
    name: str | None = None,
) -> Placement:
    """Declare a role: its class, its layout, and the workers that it is on.

    Args:
        role: Class derived from `Role`.
        layout: Sizes of the dimensions of its mesh, such as "dp2 tp2".
        on: Numbers of its workers, as many as the layout has; default: 0. Roles on one worker take turns there.
        pool: Numbers of workers with a whole, equal object each, in place of `layout` and `on`. A call goes to one of
            them that is free; the flow continues while one is left. See docs/dataflow_failures.md, "Pools".
        follows: Role that it gets its weights from, by the hook `publish`.
        frozen: Its weights never change; it can then neither train nor follow.
        name: Name of the role; default: the name of the class in small letters.

    Raises:
        ConfigError: the layout is malformed, does not fit the workers, or the arguments contradict each other.
    """
    if not (isinstance(role, type) and issubclass(role, Role)):
        raise ConfigError(f"{role!r} is placed, which is no class derived from dataflow.Role")
    parsed = Layout.parse(layout)
    workers = tuple(pool if pool is not None else (0,) if on is None else on)
    name = role.__name__.lower() if name is None else name
    if not name.isidentifier():
        raise ConfigError(f"role name {name!r} is no identifier")
    if len(set(workers)) != len(workers) or any(worker < 0 for worker in workers):
        raise ConfigError(f"role {name!r} is on workers {list(workers)}; need different numbers from 0")
    if pool is not None and (on is not None or parsed.n_workers > 1 or not workers):
        raise ConfigError(
            f"role {name!r} has pool={list(workers)}, layout {layout!r} and on={None if on is None else list(on)}; a pool "
            "has at least one worker, and neither `on` nor a layout of several: each replica is on one"
        )
    if pool is None and len(workers) != parsed.n_workers:
        raise ConfigError(
            f"role {name!r}: layout {layout!r} needs {parsed.n_workers} workers, `on` has {len(workers)}"
        )
    if frozen and follows is not None:
        raise ConfigError(f"role {name!r} is frozen and follows {follows.name!r}; it can be only one of both")
    if follows is not None and follows.follows is not None:
        raise ConfigError(
            f"role {name!r} follows {follows.name!r}, which follows another role itself; follow that one"
        )
    if follows is not None and follows.replicas:
        raise ConfigError(
            f"role {name!r} follows {follows.name!r}, which is a pool; follow a role on fixed workers"
        )
    if pool is not None and not frozen and follows is None:
        raise ConfigError(
            f"role {name!r} is a pool with weights of its own, and its replicas would not stay equal; give it `follows` or "
            "frozen=True"
        )
    hidden = [method for method in _OWN if callable(getattr(role, method, None))]
    if hidden:
        raise ConfigError(
            f"role {name!r} has methods {', '.join(hidden)}, which are attributes of its placement"
        )
    replicas = tuple(
        Placement(role, f"{name}_{worker}", parsed, (worker,), follows, frozen, pool=name)
        for worker in (workers if pool is not None else ())
    )
    return Placement(role, name, parsed, workers, follows, frozen, replicas)
