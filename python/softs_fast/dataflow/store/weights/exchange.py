"""Weights from the workers of one role to those of another one: sources show regions, targets take what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ....errors import FlowError
from ....tensors import as_plain, mark_written
from ...declare.roles import Placement
from .. import DataManager
from ..encoding import dtype_name, torch_dtype
from ..memory import copy_memory, tensor_at
from ..places import Place
from .boxes import Box
from .forms import Held, HeldForms
from .held import warn_of_rest
from .reads import Read, first_lacking, plan_reads
from .shown import Shown, ShownLayout, ShownRegion

__all__ = ["AwaitShown", "is_local", "show", "take"]

#: Takes how many are known; returns what workers show of a role, as soon as there are more.
AwaitShown = Callable[[int], Sequence[Shown]]

#: Yields the address of a value in the memory of its holder.
Mapped = Callable[[Place], AbstractContextManager[int]]

_Integers = np.ndarray[Any, np.dtype[np.int64]]


def is_local(source: Placement, target: Placement, theirs: HeldForms, mine: HeldForms | None) -> bool:
    """Return whether each worker of a target has all that it needs in its own process, so that no tensor is shown.

    All workers come to the same answer, if they have the same tensors; parts that are equal here alone do not count.

    Args:
        source: Role with an object here.
        target: Role that gets the weights.
        theirs: Forms of the source's tensors that this worker holds.
        mine: Forms of the target's tensors that this worker holds; None if the target is not here.
    """
    if source.on != target.on:
        return False
    if len(source.on) == 1:
        return True
    if not mine:
        return False
    return bool(mine.kept(("is_local", theirs), lambda: _are_alike(theirs, mine)))


def show(store: DataManager, row_id: int, role: int, held: Held | None) -> Shown:
    """Put into shared memory what this worker shows of a role; it is freed by the id.

    Args:
        store: Store of this process.
        row_id: Id by which the store keeps what is shown.
        role: Number of the role.
        held: Tensors of the role that this worker holds; None: it shows nothing.

    Raises:
        FlowError: shared memory is full, or a tensor is of a dtype that the store does not have.
    """
    if held is None:
        held = Held(HeldForms({}), [])
    forms = held.forms
    plan: _ShowPlan = forms.kept("show", lambda: _plan_show(forms))
    copies = [
        as_plain(forms[name].region(held.by_name[name], box).detach()) for name, box in plan.copied_first
    ]
    sources = held.addresses[plan.numbers] + plan.starts
    sources = np.concatenate((sources, np.array([one.data_ptr() for one in copies], np.int64)))
    place = store.put_memory(
        f"weights of {role}", row_id, sources, plan.at, plan.sizes, n_bytes=plan.layout.n_bytes
    )
    return Shown(role, plan.layout, place)


def take(
    mapped: Mapped,
    source: Placement,
    target: Placement,
    *,
    worker: int,
    theirs: Held | None,
    mine: Held,
    eta: float | None,
    await_shown: AwaitShown,
) -> None:
    """Copy or mix weights into what this worker holds of a role. It waits until all that it needs is shown.

    Args:
        mapped: Function that yields the address of a value; see `DataManager.mapped`.
        source: Role that the weights are of.
        target: Role that gets the weights.
        worker: Number of this worker.
        theirs: Tensors of the source that this worker holds; None if the source is not here.
        mine: Tensors of the target that this worker holds.
        eta: Share of the source: target = (1 - eta) * target + eta * source; None: a copy.
        await_shown: Function that returns what others show of the source.

    Raises:
        FlowError: names, shapes or dtypes do not fit, or the source's workers do not show all.
        SoftsError: what `mapped` raises.
    """
    if not mine:
        raise FlowError(
            f"weights of role {source.name!r}: it is copied to role {target.name!r}, which has no modules"
        )
    of_source = theirs.forms if theirs is not None else None
    exchange = _Exchange(source, target, worker, of_source, mine.forms, mine.twins(), eta is None)
    missing = set(source.on) - ({worker} if theirs is not None else set())
    shown: Sequence[Shown] = ()
    by_worker: dict[int, Shown] = {}
    while True:
        layouts = {one: what.layout for one, what in by_worker.items()}
        # What is decided depends on forms alone: it is the same each time, until a model changes.
        plan: _TakePlan | None = mine.forms.kept(
            (exchange, frozenset(layouts.items())), partial(exchange.plan, layouts)
        )
        if plan is not None:
            break
        if not missing:
            raise exchange.lacks(layouts)
        known = len(shown)
        shown = await_shown(known)
        for one in shown[known:]:
            missing.discard(one.worker)
            by_worker.setdefault(one.worker, one)
    _apply(mapped, plan, theirs, mine, by_worker, eta)


# --- What is shown ---


@dataclass(frozen=True)
class _ShowPlan:
    """What a worker shows, in two parts: regions that lie in one piece, then others, which are copied first.

    Attributes:
        layout: Layout of all regions.
        numbers: Numbers of the tensors of plain regions, int64 [plain regions].
        starts: Offsets of plain regions in their tensors, bytes, int64 [plain regions].
        copied_first: Tensors and boxes of the other regions.
        at: Offsets of all regions in the value, bytes, int64 [regions].
        sizes: Sizes of all regions, bytes, int64 [regions].
    """

    layout: ShownLayout
    numbers: _Integers
    starts: _Integers
    copied_first: tuple[tuple[str, Box], ...]
    at: _Integers
    sizes: _Integers


def _plan_show(forms: HeldForms) -> _ShowPlan:
    regions = [
        ShownRegion(name, one.shape, box, dtype_name(one.dtype))
        for name, one in forms.items()
        for box in one.share(name)
    ]
    layout = ShownLayout(tuple(regions))
    numbers = {name: i for i, name in enumerate(forms)}
    plain, starts, others, order = [], [], [], []
    for i, region in enumerate(regions):
        span = forms[region.name].span(region.box)
        if span is None:
            others.append(i)
        else:
            order.append(i)
            plain.append(numbers[region.name])
            starts.append(span[0])
    order += others
    return _ShowPlan(
        layout,
        np.array(plain, np.int64),
        np.array(starts, np.int64),
        tuple((regions[i].name, regions[i].box) for i in others),
        np.array(layout.offsets, np.int64)[order],
        np.array([regions[i].n_bytes for i in order], np.int64),
    )


def _are_alike(theirs: HeldForms, mine: HeldForms) -> bool:
    return all(
        name in theirs and (theirs[name].shape, theirs[name].layout) == (one.shape, one.layout)
        for name, one in mine.items()
    )


# --- What is taken ---


@dataclass(frozen=True)
class _TakePlan:
    """What a target copies or mixes. Memory is that of the source's tensors here, then that of other workers.

    Attributes:
        workers: Other workers that are read, in the order of their memory.
        into: Numbers of the tensors that are copied to, int64 [copies].
        into_starts: Offsets in these tensors, bytes, int64 [copies].
        memory: Numbers of the memory that is read, int64 [copies].
        starts: Offsets in that memory, bytes, int64 [copies].
        sizes: Sizes of the copies, bytes, int64 [copies].
        written: Numbers of the tensors into which something is copied or mixed.
        others: Regions that torch copies or mixes.
    """

    workers: tuple[int, ...]
    into: _Integers
    into_starts: _Integers
    memory: _Integers
    starts: _Integers
    sizes: _Integers
    written: tuple[int, ...]
    others: tuple[_ByTorch, ...]


@dataclass(frozen=True, slots=True)
class _ByTorch:
    """A region that is mixed, converted, or does not lie in one piece.

    Attributes:
        name: Name of the tensor.
        box: Box of the region.
        memory: Index of the other worker that has the region; None: this process has it.
        start: Offset of `held` in the memory of that worker, bytes.
        dtype: Dtype of the values that are read.
        held: Box of the tensor that lies there.
    """

    name: str
    box: Box
    memory: int | None
    start: int
    dtype: torch.dtype
    held: Box


@dataclass(frozen=True)
class _Exchange:
    """A move of weights between two roles, as it is the same each time.

    Attributes:
        source: Role that the weights are of.
        target: Role that gets the weights.
        worker: Number of this worker.
        theirs: Forms of the source's tensors here; None: the source is not here.
        mine: Forms of the target's tensors here.
        twins: Names of tensors of the target that are another one under a second name.
        is_copy: Whether values are copied, not mixed.
    """

    source: Placement
    target: Placement
    worker: int
    theirs: HeldForms | None
    mine: HeldForms
    twins: frozenset[str]
    is_copy: bool

    def plan(self, layouts: Mapping[int, ShownLayout]) -> _TakePlan | None:
        """Return what is read where, of what others show; None if that is not all.

        Raises:
            FlowError: shapes or dtypes do not fit.
        """
        if self.theirs is not None:
            for name, one in self.theirs.items():
                self._check(name, one.shape, one.dtype)
        for layout in layouts.values():
            for region in layout.regions:
                self._check(region.name, region.shape, torch_dtype(region.dtype))
        wanted, held = self._wanted(), self._held(layouts)
        if first_lacking(wanted, held) is not None:
            return None
        if self.is_copy:
            names = (name for boxes in held.values() for name in boxes)
            warn_of_rest(self.source, self.target, names, self.mine)
        item_bytes = dict.fromkeys(wanted, 1)
        for layout in layouts.values():
            item_bytes |= layout.item_bytes()
        reads = plan_reads(self.worker, wanted, held, item_bytes=item_bytes)
        return self._placed(reads, layouts)

    def lacks(self, layouts: Mapping[int, ShownLayout]) -> FlowError:
        """Return the error of what none of the source's workers shows."""
        wanted, held = self._wanted(), self._held(layouts)
        lacking = first_lacking(wanted, held)
        assert lacking is not None
        name, box = lacking
        what = f"weights of role {self.source.name!r}"
        names = sorted(set(wanted) - {one for boxes in held.values() for one in boxes})
        if names:
            return FlowError(f"{what}: it lacks {', '.join(names[:4])}")
        return FlowError(
            f"{what}: none of its workers {list(self.source.on)} shows {box} of {name}, which role "
            f"{self.target.name!r} needs; each tensor has to be in the same layout on all of them"
        )

    def _wanted(self) -> dict[str, list[Box]]:
        return {name: one.boxes for name, one in self.mine.items() if name not in self.twins}

    def _held(self, layouts: Mapping[int, ShownLayout]) -> dict[int, Mapping[str, Sequence[Box]]]:
        held: dict[int, Mapping[str, Sequence[Box]]] = {one: what.boxes for one, what in layouts.items()}
        if self.theirs is not None:
            held[self.worker] = {name: one.boxes for name, one in self.theirs.items()}
        return held

    def _check(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        own = self.mine.get(name)
        if own is None:
            return
        what = f"weights of role {self.source.name!r}: {name}"
        if shape != own.shape:
            raise FlowError(f"{what} has shape {shape}, role {self.target.name!r} has {own.shape}")
        if not torch.can_cast(dtype, own.dtype):
            raise FlowError(
                f"{what} is {_named(dtype)} {list(shape)}, role {self.target.name!r} has {_named(own.dtype)}, which has "
                "no such values"
            )

    def _placed(self, reads: Sequence[Read], layouts: Mapping[int, ShownLayout]) -> _TakePlan:
        workers = tuple(dict.fromkeys(read.source for read in reads if read.source != self.worker))
        numbers = {name: i for i, name in enumerate(self.mine)}
        own_numbers = {name: i for i, name in enumerate(self.theirs or ())}
        copies: list[tuple[int, int, int, int, int]] = []
        others: list[_ByTorch] = []
        for read in reads:
            into = self.mine[read.name].span(read.box)
            if read.source == self.worker:
                assert self.theirs is not None
                form = self.theirs[read.name]
                memory, start, dtype, value = own_numbers[read.name], 0, form.dtype, form.span(read.box)
            else:
                layout, which = layouts[read.source], workers.index(read.source)
                number = layout.numbers[read.name, read.held]
                dtype = torch_dtype(layout.regions[number].dtype)
                memory, start = len(own_numbers) + which, layout.offsets[number]
                value = read.box.span_in(read.held.size, read.box.offset_in(read.held))
                if value is not None:
                    value = (value[0] * dtype.itemsize, value[1] * dtype.itemsize)
            if (
                self.is_copy
                and dtype is self.mine[read.name].dtype
                and into is not None
                and value is not None
            ):
                copies.append((numbers[read.name], into[0], memory, start + value[0], into[1]))
            else:
                far = None if read.source == self.worker else which
                others.append(_ByTorch(read.name, read.box, far, start, dtype, read.held))
        into_, into_starts, which_, starts, sizes = np.array(copies, np.int64).reshape(-1, 5).T
        written = tuple({*into_.tolist(), *(numbers[one.name] for one in others)})
        return _TakePlan(workers, into_, into_starts, which_, starts, sizes, written, tuple(others))


def _apply(
    mapped: Mapped,
    plan: _TakePlan,
    theirs: Held | None,
    mine: Held,
    shown: Mapping[int, Shown],
    eta: float | None,
) -> None:
    with ExitStack() as stack, torch.no_grad():
        far = [stack.enter_context(mapped(shown[one].place)) for one in plan.workers]
        memory = np.array(far, np.int64)
        if theirs is not None:
            memory = np.concatenate((theirs.addresses, memory))
        targets = mine.addresses[plan.into] + plan.into_starts
        copy_memory(targets, memory[plan.memory] + plan.starts, plan.sizes)
        # As an operation of torch would do, so that autograd refuses to use what it saved before. A DTensor has a counter
        # of its own, which no operation on its shard moves.
        mark_written(mine.owners[i] for i in plan.written)
        for one in plan.others:
            into = mine.forms[one.name].region(mine.by_name[one.name], one.box)
            if one.memory is None:
                assert theirs is not None
                value = theirs.forms[one.name].region(theirs.by_name[one.name], one.box)
            else:
                value = tensor_at(far[one.memory] + one.start, one.dtype, one.held.size)
                if one.box != one.held:
                    value = value[one.box.within(one.held)]
            if eta is None:
                into.copy_(value)
            else:
                into.lerp_(value.to(into), eta)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
