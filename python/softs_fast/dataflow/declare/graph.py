"""The graph of functions, from their columns: what cannot be a flow is refused here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...errors import ConfigError
from .calls import MFCDef

__all__ = ["graph_of"]


def graph_of(
    calls: Sequence[MFCDef], source: Mapping[str, Collection[str]]
) -> tuple[list[MFCDef], dict[str, tuple[str, ...]]]:
    """Return the functions in an order in which each comes after those it reads from, and the columns read of the source.

    Args:
        calls: the functions; edges follow from their columns, within a partition.
        source: columns that the rows of each partition begin with.

    Raises:
        ConfigError: two functions have one name or two roles do, a column has two producers or none, an output is read
            by no function, functions wait for each other in a circle, a function drops rows at the end of the source that
            others may have trained with, or a partition has functions and no source.
    """
    if not calls:
        raise ConfigError("the flow has no functions")
    _check_names(calls)
    order: list[MFCDef] = []
    read: dict[str, tuple[str, ...]] = {}
    for partition in dict.fromkeys(one.partition for one in calls):
        own = [one for one in calls if one.partition == partition]
        if partition not in source:
            names = ", ".join(one.name for one in own)
            raise ConfigError(
                f"partition {partition!r} of {names} has no source; it has {', '.join(sorted(source))}"
            )
        columns = source[partition]
        makers = _makers(own, columns)
        inputs = {key for one in own for key in one.input_keys}
        _check_columns(own, columns, makers, inputs)
        order += _sorted(own, makers)
        _check_rest(own, makers)
        read[partition] = tuple(sorted(inputs - set(makers)))
    idle = sorted(set(source) - set(read))
    if idle:
        raise ConfigError(f"the source has partitions that no function reads: {', '.join(idle)}")
    return order, read


def _check_names(calls: Sequence[MFCDef]) -> None:
    twice = [name for name, n in Counter(one.name for one in calls).items() if n > 1]
    if twice:
        raise ConfigError(f"{len(twice)} names have several functions: {', '.join(twice)}; give `name=`")
    roles = {}
    for one in calls:
        for hook in (*one.pre_hooks, *one.post_hooks):
            roles.update(dict.fromkeys(hook.roles))
        if one.model_name is not None:
            roles[one.model_name] = None
            roles.update(dict.fromkeys(filter(None, [one.model_name.follows])))
    twice = [name for name, n in Counter(role.name for role in roles).items() if n > 1]
    if twice:
        raise ConfigError(f"several roles are named {', '.join(twice)}; give `place(..., name=)`")


def _makers(calls: Sequence[MFCDef], source: Collection[str]) -> dict[str, MFCDef]:
    makers: dict[str, MFCDef] = {}
    for one in calls:
        for key in one.output_keys:
            if key in makers:
                raise ConfigError(f"column {key!r} has two producers: {makers[key].name} and {one.name}")
            if key in source:
                raise ConfigError(f"column {key!r} has two producers: the source and {one.name}")
            makers[key] = one
    return makers


def _check_columns(
    calls: Sequence[MFCDef], source: Collection[str], makers: Mapping[str, MFCDef], inputs: Collection[str]
) -> None:
    for one in calls:
        missing = [key for key in one.input_keys if key not in makers and key not in source]
        if missing:
            have = ", ".join(sorted({*source, *makers}))
            raise ConfigError(
                f"{one.name} reads {', '.join(missing)}, which has no producer; there are: {have}"
            )
    unread = [f"{key} (of {maker.name})" for key, maker in makers.items() if key not in inputs]
    if unread:
        raise ConfigError(
            f"columns that no function reads: {', '.join(unread)}; leave them out of the outputs"
        )


def _check_rest(calls: Sequence[MFCDef], makers: Mapping[str, MFCDef]) -> None:
    """Check that what a function drops at the end of the source, because it is too little, was not trained with before."""
    for one in calls:
        if one.uneven != "drop" or not one.output_keys:
            continue
        beside = [
            other.name for other in calls if other.trains and one not in (other, *_upstream(other, makers))
        ]
        if beside:
            columns = ", ".join(one.output_keys)
            raise ConfigError(
                f'{one.name}: uneven="drop" drops rows at the end of the source that {", ".join(beside)} may have trained '
                f'with by then; use uneven="short" or "pad", or have {beside[0]} read {columns}'
            )


def _upstream(call: MFCDef, makers: Mapping[str, MFCDef]) -> set[MFCDef]:
    """Return the functions that make inputs of a function, directly or not."""
    found: set[MFCDef] = set()
    left = [call]
    while left:
        new = {makers[key] for key in left.pop().input_keys if key in makers} - found
        found |= new
        left += new
    return found


def _sorted(calls: Sequence[MFCDef], makers: Mapping[str, MFCDef]) -> list[MFCDef]:
    """Return them in an order of their edges, otherwise as they were declared (Kahn's algorithm)."""
    before = {one: {makers[key] for key in one.input_keys if key in makers} for one in calls}
    order: list[MFCDef] = []
    while len(order) < len(calls):
        free = [one for one in calls if one not in order and before[one] <= set(order)]
        if not free:
            raise ConfigError(f"functions wait for each other in a circle: {_circle(calls, before, order)}")
        order.append(free[0])
    return order


def _circle(calls: Sequence[MFCDef], before: Mapping[MFCDef, set[MFCDef]], done: Sequence[MFCDef]) -> str:
    path = [next(one for one in calls if one not in done)]
    while True:
        # Each function that is left waits for one that is left, so the path ends in a circle.
        following = next(one for one in calls if one in before[path[-1]] and one not in done)
        if following in path:
            circle = [*path[path.index(following) :], following]
            return " <- ".join(one.name for one in circle)
        path.append(following)
