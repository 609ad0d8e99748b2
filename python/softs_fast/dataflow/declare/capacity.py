"""Numbers of rows, groups, ages and slots: what can never fit is refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, lcm

from ...errors import ConfigError
from .calls import TRAIN, MFCDef
from .plan import FlowPlan, FunctionPlan, PartitionPlan

__all__ = ["needs_of_steps", "plan_of"]

# Steps that are tried one by one, to see whether the slots suffice in all of them.
_MOST_STEPS = 1 << 12


def plan_of(
    order: Sequence[MFCDef],
    source: dict[str, tuple[str, ...]],
    *,
    group: int = 1,
    max_age: int = 0,
    ahead: int | None = None,
    window: int = 1,
) -> FlowPlan:
    """Return the plan of a flow.

    A step of a partition has as many groups as one pass of its largest training function, or of its largest function if
    none trains. `ahead + 1` steps of groups have slots; a slot is free when a step is complete. So a group waits for at
    most `(ahead + 1) * P - 1` others when it is admitted, and at most `window - 1` later ones overtake it: its age when a
    training function takes it is at most `ahead + ceil((window - 1) / P)`. With `ahead=0` it is 0: all that have slots are
    of one step, so a group that is overtaken is still used in this step.

    Args:
        order: the functions, each after those that it reads from.
        source: columns that are read of the source, by partition.
        group: rows that stay together.
        max_age: largest age, in steps, of rows that a training function may get.
        ahead: steps of rows that may be begun before the step before them is complete; default: as many as `max_age` and
            `window` admit.
        window: among how many groups, from the oldest on, training functions choose those that are ready first.

    Raises:
        ConfigError: the numbers can never fit.

    Source: the bound for one function and W = 1 is that of torchtitan's RL trainer; own for several, see docs/dataflow.md.
    """
    for name, value, least in (
        ("group", group, 1),
        ("max_age", max_age, 0),
        ("ahead", 0 if ahead is None else ahead, 0),
        ("window", window, 1),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; need at least {least}")
    for one in order:
        for what, n in (("rows", one.n_seqs), ("at_least", one.least)):
            if n % group:
                raise ConfigError(f"{one.name}: {what}={n} does not hold whole groups of {group} rows")
    if window > 1 and any(one.reuse > 1 for one in order):
        names = ", ".join(one.name for one in order if one.reuse > 1)
        raise ConfigError(
            f"window is {window}, and {names} uses rows several times in their order; use window=1"
        )
    functions = tuple(_function(one, group) for one in order)
    is_given = ahead is not None
    if ahead is None:
        ahead = max(max_age - ceil((window - 1) / _groups_per_step(functions, TRAIN)), 0)
    partitions = {}
    for name in source:
        own = [one for one in functions if one.partition == name]
        per_step = _groups_per_step(own, name)
        bound = _age_bound(ahead, window, per_step)
        partitions[name] = PartitionPlan(name, per_step, (ahead + 1) * per_step, bound)
        if name == TRAIN and any(one.is_strict for one in own):
            _check_ages(max_age, ahead, window, per_step, is_given=is_given)
        _check_slots(own, partitions[name], group)
    return FlowPlan(functions, partitions, source, group, window)


def _function(one: MFCDef, group: int) -> FunctionPlan:
    return FunctionPlan(
        one.name,
        one.model_name.on if one.model_name is not None else (),
        one.input_keys,
        one.output_keys,
        one.n_seqs // group,
        one.least // group,
        one.reuse,
        one.trains,
        one.uneven == "drop",
        one.partition,
        one.model_name is not None and bool(one.model_name.replicas),
    )


def _groups_per_step(functions: Sequence[FunctionPlan], partition: str) -> int:
    own = [one for one in functions if one.partition == partition]
    return max((one.groups for one in own if one.is_strict), default=max(one.groups for one in own))


def _age_bound(ahead: int, window: int, per_step: int) -> int:
    return ahead + ceil((window - 1) / per_step) if ahead else 0


def _check_ages(max_age: int, ahead: int, window: int, per_step: int, *, is_given: bool) -> None:
    """Check that no row can be too old when a function trains, and that all groups of a window have slots.

    Args:
        max_age: Largest age of rows, in steps; like `ahead` and `window` an argument of `plan_of`.
        per_step: groups of a step.
        is_given: whether the user has chosen `ahead`.
    """
    bound, slots = _age_bound(ahead, window, per_step), (ahead + 1) * per_step
    said = f"ahead={ahead}, window={window} of groups, {per_step} groups per step"
    # What admits this window: with the least `ahead` by which all of its groups have slots.
    enough = max(ceil(window / per_step) - 1, ahead)
    wider = f"max_age={max(_age_bound(enough, window, per_step), max_age)}" + f", ahead={enough}" * is_given
    if bound > max_age:
        narrower = f"ahead={max_age}, window=1"
        if ahead <= max_age:
            narrower = f"window={min((max_age - ahead) * per_step + 1, slots)}"
        raise ConfigError(
            f"rows could be {bound} steps old and max_age is {max_age}: {said}; write {wider}, or {narrower}"
        )
    if window > slots:
        raise ConfigError(
            f"window is {window} groups, and {slots} have slots: {said}; write {wider}, or window={slots}"
        )


def _check_slots(functions: Sequence[FunctionPlan], partition: PartitionPlan, group: int) -> None:
    """Check that no function waits for rows that get their slots only after it has run.

    For each step, from the last functions to the first: how many groups must each have consumed, if all run in whole
    calls? The source must have admitted as many, while only earlier steps have given their slots back.
    """
    per_step, slots = partition.groups_per_step, partition.slots
    for step, wanted in enumerate(needs_of_steps(functions, per_step)):
        need = max(wanted.values())
        have = step * per_step + slots
        if need > have:
            name = max(wanted, key=lambda name: wanted[name])
            raise ConfigError(
                f"step {step} can never end: {name} needs {need * group} rows by then, and {have * group} can have a "
                f"slot ({partition.slots * group} slots, {per_step * group} rows per step); "
                f"choose rows that divide {per_step * group}, or raise ahead and max_age"
            )


def needs_of_steps(functions: Sequence[FunctionPlan], per_step: int) -> Iterator[dict[str, int]]:
    """Yield, for each step of a period, how many groups each function must have taken for the step to end.

    Args:
        functions: Functions of one partition, each after those that it reads from.
        per_step: Groups of a step.
    """
    period = lcm(*(one.groups for one in functions), per_step) // per_step
    for step in range(min(period, _MOST_STEPS)):
        wanted = {one.name: (step + 1) * per_step for one in functions}
        for one in reversed(functions):
            reading = [after for after in functions if set(after.inputs) & set(one.outputs)]
            need = max([wanted[one.name], *(wanted[after.name] for after in reading)])
            whole = ceil(need / one.groups) * one.groups
            wanted[one.name] = min(whole, need + one.least - 1) if one.least < one.groups else whole
        yield wanted
