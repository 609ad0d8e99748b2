"""Weights from the workers of one role to those of another one: sources show regions, targets take what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from ... import _kernels
from ...errors import FlowError
from ...snapshots.window import is_plain
from ..declare.roles import Placement
from ..moves import DataManager
from ..moves.encoding import torch_dtype
from ..moves.places import ITEM_BYTES, Place
from .boxes import Box
from .held import HeldTensor
from .reads import Read, first_lacking, plan_reads
from .shown import Shown, ShownRegion

__all__ = ["AwaitShown", "is_local", "show", "take"]

#: Takes how many are known; returns what workers show of a role, as soon as there are more.
AwaitShown = Callable[[int], Sequence[Shown]]

#: Yields the tensors of a value in the memory of its holder.
View = Callable[[Place], AbstractContextManager[list[Tensor]]]

Held = Mapping[str, HeldTensor]


def is_local(source: Placement, target: Placement, theirs: Held, mine: Held) -> bool:
    """Return whether each worker of a target has all that it needs in its own process, so that no tensor is shown.

    All workers come to the same answer, if they have the same tensors; parts that are equal here alone do not count.

    Args:
        source: a role with an object here.
        target: the role that gets the weights.
        theirs: what this worker holds of the source.
        mine: of the target; empty if it is not here.
    """
    if source.on != target.on:
        return False
    if len(source.on) == 1:
        return True
    return bool(mine) and all(
        name in theirs and (theirs[name].shape, theirs[name].layout) == (one.shape, one.layout)
        for name, one in mine.items()
    )


def show(store: DataManager, row_id: int, role: int, held: Held) -> Shown:
    """Put into shared memory what this worker shows of a role; it is freed by the id.

    Args:
        store: of this process.
        row_id: by which the store keeps it.
        role: number of the role.
        held: what this worker holds of it.

    Raises:
        FlowError: shared memory is full, or a tensor is of a dtype that the store does not have.
    """
    regions, tensors = [], []
    for name, one in held.items():
        box = one.share(name)
        if box is not None:
            regions.append(ShownRegion(name, one.shape, box.start))
            tensors.append(one.region(box))
    (place,) = store.put(f"weights of {role}", [row_id], [tensors])
    return Shown(role, tuple(regions), place)


def take(
    view: View,
    source: Placement,
    target: Placement,
    *,
    worker: int,
    theirs: Held,
    mine: Held,
    eta: float | None,
    await_shown: AwaitShown,
) -> None:
    """Copy or mix weights into what this worker holds of a role. It waits until all that it needs is shown.

    Args:
        view: as `DataManager.viewed`.
        source: the role that the weights are of.
        target: the role that gets them.
        worker: this one.
        theirs: what this worker holds of the source; empty if it is not here.
        mine: what it holds of the target.
        eta: target = (1 - eta) * target + eta * source; None: a copy.
        await_shown: returns what others show of the source.

    Raises:
        FlowError: names, shapes or dtypes do not fit, or the source's workers do not show all.
        SoftsError: what `view` raises.
    """
    if not mine:
        raise FlowError(
            f"weights of role {source.name!r}: it is copied to role {target.name!r}, which has no modules"
        )
    wanted = {name: one.box for name, one in _different(mine).items()}
    held: dict[int, Mapping[str, Sequence[Box]]] = {}
    if theirs:
        held[worker] = {name: [one.box] for name, one in theirs.items()}
        for name, own in theirs.items():
            _check(source, target, name, own.shape, own.local.dtype, mine)
    missing = set(source.on) - set(held)
    shown: Sequence[Shown] = ()
    while (lacking := first_lacking(wanted, held)) is not None:
        if not missing:
            raise FlowError(_lacking(source, target, lacking, wanted, held))
        known = len(shown)
        shown = await_shown(known)
        for one in shown[known:]:
            for region, (dtype, _) in zip(one.regions, one.place.parts, strict=True):
                _check(source, target, region.name, region.shape, torch_dtype(dtype), mine)
            missing.discard(one.worker)
            if one.worker not in held:
                held[one.worker] = one.boxes()
    item_bytes = dict.fromkeys(wanted, 1) | {
        region.name: ITEM_BYTES[dtype]
        for one in shown
        for region, (dtype, _) in zip(one.regions, one.place.parts, strict=True)
    }
    reads = plan_reads({worker: wanted}, held, item_bytes=item_bytes).of[worker]
    _apply(view, reads, worker, theirs, mine, {one.worker: one for one in shown}, eta)


def _apply(
    view: View,
    reads: Sequence[Read],
    worker: int,
    theirs: Held,
    mine: Held,
    shown: Mapping[int, Shown],
    eta: float | None,
) -> None:
    used = [one for one in dict.fromkeys(read.source for read in reads) if one != worker]
    copies: list[tuple[Tensor, Tensor]] = []
    with ExitStack() as stack, torch.no_grad():
        values = {one: stack.enter_context(view(shown[one].place)) for one in used}
        numbers = {one: shown[one].numbers() for one in used}
        for read in reads:
            into = mine[read.name].region(read.box)
            if read.source == worker:
                value = theirs[read.name].region(read.box)
            else:
                value = values[read.source][numbers[read.source][read.name, read.held]]
                if read.box != read.held:
                    value = value[read.box.within(read.held)]
            if eta is not None:
                into.lerp_(value.to(into), eta)
            elif into.dtype is value.dtype and is_plain(into) and is_plain(value):
                copies.append((into, value))
            else:
                into.copy_(value)
        _copy(copies)


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy contiguous tensors to others of their dtype; one native call copies between addresses."""
    some = [(into.data_ptr(), value.data_ptr(), into.nbytes) for into, value in pairs if into.nbytes]
    if some:
        # Those of the sources are counted from the lowest.
        lowest = min(start for _, start, _ in some)
        _kernels.snapshot_scatter(lowest, [(to, start - lowest, n_bytes) for to, start, n_bytes in some])
        # As an operation of torch would do, so that autograd refuses to use what it saved before.
        torch.autograd.graph.increment_version([into for into, _ in pairs])


def _different(mine: Held) -> dict[str, HeldTensor]:
    """Return tensors without those that are another one of them under a second name, which would be mixed twice."""
    found: dict[object, str] = {}
    for name, one in mine.items():
        local = one.local
        found.setdefault(
            (local.data_ptr(), local.shape, local.stride(), local.dtype) if local.numel() else name, name
        )
    return {name: mine[name] for name in found.values()}


def _check(
    source: Placement,
    target: Placement,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    mine: Held,
) -> None:
    """Check that a tensor of a source fits that of the target."""
    if name not in mine:
        return
    own: Tensor = mine[name].local
    if shape != mine[name].shape:
        raise FlowError(
            f"weights of role {source.name!r}: {name} has shape {shape}, role {target.name!r} has {mine[name].shape}"
        )
    if not torch.can_cast(dtype, own.dtype):
        raise FlowError(
            f"weights of role {source.name!r}: {name} is {_named(dtype)} {list(shape)}, role {target.name!r} has "
            f"{_named(own.dtype)}, which has no such values"
        )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lacking(
    source: Placement,
    target: Placement,
    lacking: tuple[str, Box],
    wanted: Mapping[str, Box],
    held: Mapping[int, Mapping[str, Sequence[Box]]],
) -> str:
    name, box = lacking
    there = {one for boxes in held.values() for one in boxes}
    names = sorted(set(wanted) - there)
    if names:
        return f"weights of role {source.name!r}: it lacks {', '.join(names[:4])}"
    return (
        f"weights of role {source.name!r}: none of its workers {list(source.on)} shows {box} of {name}, which role "
        f"{target.name!r} needs; each tensor has to be in the same layout on all of them"
    )
