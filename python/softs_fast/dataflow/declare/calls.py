"""Model function calls: what runs on which columns of how many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ...errors import ConfigError
from .columns import Columns
from .hooks import Evaluate, Hook, ParamRealloc, Publish, Save
from .roles import Placement, RoleFunction
from .transfer import DataTransfer, columns_of

__all__ = ["Interface", "MFCDef", "Uneven", "call"]

Uneven = Literal["short", "pad", "drop"]
#: Partition of the rows that a flow trains with.
TRAIN = "train"


class Interface(Enum):
    """What kind of function it is, as in AReaL."""

    GENERATE = "generate"
    INFERENCE = "inference"
    TRAIN_STEP = "train_step"


@dataclass(frozen=True, eq=False)
class MFCDef:
    """A model function call.

    Attributes:
        name: Name of the function in the flow.
        model_name: Role; None for a function without one, which runs in the process of the flow.
        interface_type: Kind of the function, or its word, such as "train_step", as files have it. The rows of a
            `generate` get the version of the weights that made them; the rows of a `train_step` are taken oldest
            first, and their age is checked.
        interface_impl: Method of the role, or the function.
        input_keys: Columns that it reads.
        output_keys: Columns that it writes.
        input_key_remap: Names that the function has for inputs, by column, where they differ.
        output_key_remap: Columns of outputs, by the names that the function has for them, where they differ.
        n_seqs: Rows of one pass.
        at_least: Rows of a pass with which a call may begin; `n_seqs` if each pass is one call.
        reuse: Number of times that each row is used before the function is through with it.
        uneven: Treatment of the rest at the end of the source, when there are fewer rows than `n_seqs`: "short" runs
            with fewer, "pad" repeats rows up to `n_seqs` and marks them, "drop" drops them.
        partition: Partition of the rows that the function works on.
        pre_hooks: Hooks that run before the main part, in this order.
        post_hooks: Hooks that run after the main part, in this order.
        deadline_s: How long each step of a call, a hook or the main part, may be with a worker process; None: what the flow
            says. See docs/dataflow.md.

    Raises:
        ConfigError: the numbers, columns or hooks contradict each other.
    """

    name: str
    model_name: Placement | None
    interface_type: Interface
    interface_impl: str | Callable[..., object]
    input_keys: tuple[str, ...]
    output_keys: tuple[str, ...] = ()
    input_key_remap: Mapping[str, str] = field(default_factory=dict)
    output_key_remap: Mapping[str, str] = field(default_factory=dict)
    n_seqs: int = 1
    at_least: int | None = None
    reuse: int = 1
    uneven: Uneven = "short"
    partition: str = TRAIN
    pre_hooks: tuple[Hook, ...] = ()
    post_hooks: tuple[Hook, ...] = ()
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        kinds = [one.value for one in Interface]
        if not isinstance(self.interface_type, Interface):
            if self.interface_type not in kinds:
                words = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
                raise ConfigError(f"{self.name}: interface_type is {self.interface_type!r}; need {words}")
            object.__setattr__(self, "interface_type", Interface(self.interface_type))
        if not self.input_keys:
            raise ConfigError(f"{self.name} reads no column")
        least = self.n_seqs if self.at_least is None else self.at_least
        if not 1 <= least <= self.n_seqs:
            raise ConfigError(
                f"{self.name}: rows={self.n_seqs}, at_least={least}; need 1 <= at_least <= rows"
            )
        if self.reuse < 1:
            raise ConfigError(f"{self.name}: reuse={self.reuse}; it counts uses, from 1")
        if self.reuse > 1 and (least < self.n_seqs or self.output_keys):
            raise ConfigError(
                f"{self.name}: reuse={self.reuse} needs whole passes (no at_least) and no output columns"
            )
        if self.uneven not in ("short", "pad", "drop"):
            raise ConfigError(f'{self.name}: uneven is {self.uneven!r}; need "short", "pad" or "drop"')
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise ConfigError(f"{self.name}: deadline_s={self.deadline_s:g}; it is above 0, or None")
        unknown = [key for key in self.input_key_remap if key not in self.input_keys]
        unknown += [key for key in self.output_key_remap.values() if key not in self.output_keys]
        if unknown:
            raise ConfigError(
                f"{self.name} renames columns that it does not have: {', '.join(sorted(unknown))}"
            )
        self._check_role()

    def _check_role(self) -> None:
        role, trains = self.model_name, self.interface_type is Interface.TRAIN_STEP
        if role is None:
            if trains or self.interface_type is Interface.GENERATE:
                raise ConfigError(f"{self.name} is a {self.interface_type.value} without a role")
            if not callable(self.interface_impl):
                raise ConfigError(f"{self.name} has no role, and {self.interface_impl!r} cannot be called")
        elif not isinstance(self.interface_impl, str) or not callable(
            getattr(role.role, self.interface_impl, None)
        ):
            raise ConfigError(f"{self.name}: role {role.name!r} has no method {self.interface_impl!r}")
        if trains and role is not None and (role.frozen or role.follows is not None):
            why = "is frozen" if role.frozen or role.follows is None else f"follows {role.follows.name!r}"
            raise ConfigError(f"{self.name} trains role {role.name!r}, which {why}")
        for one in (*self.pre_hooks, *self.post_hooks):
            self._check_hook(one)
        for is_before, hooks in ((True, self.pre_hooks), (False, self.post_hooks)):
            for one in hooks:
                if isinstance(one, DataTransfer):
                    self._check_transfer(one, is_before=is_before)

    def _check_hook(self, one: Hook) -> None:
        role = self.model_name
        if not one.roles and role is None:
            raise ConfigError(f"{self.name} has no role, so its hook {one.name} needs one")
        if isinstance(one, Publish):
            wrong = [to.name for to in one.roles if to.follows is not role]
            if wrong:
                raise ConfigError(
                    f"{self.name} publishes to {', '.join(wrong)}, which does not follow its role"
                )
        if isinstance(one, ParamRealloc) and one.roles[1].frozen:
            raise ConfigError(
                f"{self.name}: param_realloc changes role {one.roles[1].name!r}, which is frozen"
            )
        if (
            isinstance(one, Evaluate)
            and role is not None
            and not callable(getattr(role.role, "evaluate", None))
        ):
            raise ConfigError(f"{self.name}: role {role.name!r} has no method evaluate for its hook")
        if isinstance(one, (Evaluate, Save)) and one in self.pre_hooks:
            raise ConfigError(f"{self.name}: {one.name} can only be a hook after the main part")

    def _check_transfer(self, one: DataTransfer, *, is_before: bool) -> None:
        where = "before" if is_before else "after"
        if is_before and one.roles not in ((), (self.model_name,)):
            raise ConfigError(
                f"{self.name}: data_transfer to role {one.roles[0].name!r} before it; that one is for its own inputs"
            )
        if not is_before and not one.roles:
            raise ConfigError(f"{self.name}: data_transfer after it needs a role that reads the rows")
        known = self.input_keys if is_before else (*self.input_keys, *self.output_keys)
        unknown = [key for key in one.columns if key not in known]
        if unknown or not columns_of(one, self.input_keys, self.output_keys, is_before=is_before):
            what = f"brings {', '.join(unknown)}" if unknown else "names no column"
            raise ConfigError(f"{self.name}: data_transfer {where} it {what}; there are {', '.join(known)}")

    @property
    def least(self) -> int:
        """With how many rows a call may begin."""
        return self.n_seqs if self.at_least is None else self.at_least

    @property
    def trains(self) -> bool:
        """Whether it changes the weights of its role."""
        return self.interface_type is Interface.TRAIN_STEP


def call(
    function: RoleFunction | Callable[..., object],
    columns: str,
    *,
    rows: int,
    at_least: int | None = None,
    reuse: int = 1,
    uneven: Uneven = "short",
    partition: str = TRAIN,
    before: Iterable[Hook] = (),
    after: Iterable[Hook] = (),
    interface: Interface | None = None,
    name: str | None = None,
    deadline_s: float | None = None,
) -> MFCDef:
    """Declare a function of the flow.

    Args:
        function: `role.method` of a placed role, or a plain function, which runs beside the flow itself.
        columns: "in -> out"; `a as b` renames from left to right.
        rows: Number of rows of one pass.
        at_least: See `MFCDef`; as are reuse, uneven and partition.
        before: Hooks before the main part.
        after: Hooks after it.
        interface: Default: train_step for a role's function without output columns, unless the role is frozen, follows
            another one, or works on another partition; generate for a method of that name; else inference.
        name: Default: "role.method", or the name of the function.
        deadline_s: See `MFCDef`.

    Raises:
        ConfigError: something contradicts; see `MFCDef`.
    """
    parsed = Columns.parse(columns)
    role = function.placement if isinstance(function, RoleFunction) else None
    method = function.method if isinstance(function, RoleFunction) else function
    if name is None:
        name = (
            function.name if isinstance(function, RoleFunction) else getattr(function, "__name__", "function")
        )
    if interface is None:
        changes = role is not None and not role.frozen and role.follows is None and partition == TRAIN
        interface = Interface.TRAIN_STEP if changes and not parsed.outputs else Interface.INFERENCE
        if role is not None and method == "generate":
            interface = Interface.GENERATE
    return MFCDef(
        name,
        role,
        interface,
        method,
        parsed.inputs,
        parsed.outputs,
        parsed.input_remap,
        parsed.output_remap,
        rows,
        at_least,
        reuse,
        uneven,
        partition,
        tuple(before),
        tuple(after),
        deadline_s,
    )
