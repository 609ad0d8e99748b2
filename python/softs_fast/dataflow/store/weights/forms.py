"""What a process holds of the tensors of a role: forms, which stay the same while training, and the memory of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import FlowError
from ....tensors import is_plain
from .boxes import Box, Piece

__all__ = ["Held", "HeldForm", "HeldForms", "Layout", "Mark", "twins_of"]

#: Below that a tensor is shown by one of its holders, bytes.
_LEAST_CUT = 1 << 16
#: Plans that are kept for tensors of the same forms.
_MOST_PLANS = 64

_Integers = np.ndarray[Any, np.dtype[np.int64]]

#: Of a mesh its sizes and ranks; and dimensions of the mesh with those of the tensor that they cut.
Layout = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class HeldForm:
    """What this worker holds of a tensor: all but its memory.

    Attributes:
        dtype: Dtype of the tensor.
        size: Size of what is here, along each dimension.
        is_plain: Whether what is here is contiguous and in host memory.
        shape: Shape of the whole tensor.
        pieces: Parts of the tensor that are here, which do not overlap; empty if what is here has no items.
        replicas: Workers that hold the same part, this one included, as all of them know.
        index: Index of this worker among the replicas.
        layout: Layout of the tensor on all workers of the mesh; equal layouts of one shape have equal parts
            everywhere. Empty: it is no DTensor.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    is_plain: bool
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    replicas: tuple[int, ...]
    index: int
    layout: Layout

    @property
    def boxes(self) -> list[Box]:
        """The parts of the tensor that are here."""
        return [piece.box for piece in self.pieces]

    def share(self, name: str) -> list[Box]:
        """Return the parts that this worker shows to others; those of all replicas are the boxes.

        Args:
            name: Name of the tensor.
        """
        boxes, n = self.boxes, len(self.replicas)
        if n == 1:
            return boxes
        if sum(box.n_items for box in boxes) * self.dtype.itemsize >= _LEAST_CUT:
            return [part for box in boxes if (part := box.part(n, self.index)) is not None]
        return boxes if _number_of(name) % n == self.index else []

    def start(self, box: Box) -> tuple[int, ...]:
        """Return the first index of a box in what is here."""
        for piece in self.pieces:
            if piece.box.overlap(box) == box:
                pairs = zip(box.start, piece.box.start, piece.at, strict=True)
                return tuple(begin - first + at for begin, first, at in pairs)
        raise FlowError(f"{box} of a tensor is not here; there are {', '.join(map(str, self.boxes))}")

    def span(self, box: Box) -> tuple[int, int] | None:
        """Return where a box begins in what is here, and its size, in bytes; None if it does not lie in one piece there."""
        found = box.span_in(self.size, self.start(box)) if self.is_plain else None
        return None if found is None else (found[0] * self.dtype.itemsize, found[1] * self.dtype.itemsize)

    def region(self, local: Tensor, box: Box) -> Tensor:
        """Return a view of a part of what is here."""
        if box.size == self.size:
            return local
        return local[tuple(slice(a, a + n) for a, n in zip(self.start(box), box.size, strict=True))]


@dataclass(frozen=True, slots=True)
class Mark:
    """By which a tensor is known to have the same form; with a mesh it is a DTensor.

    Attributes:
        size: Size of what is here of a DTensor; None: nothing is here.
    """

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_plain: bool
    mesh: Any = None
    placements: Any = None
    size: tuple[int, ...] | None = None


class HeldForms(Mapping[str, HeldForm]):
    """What this worker holds of the tensors of a role, by name: all but their memory.

    Args:
        forms: Forms of the tensors by name.
        marks: Mark of each tensor of the role's object, by which it is recognised; None: `found_in` returns None.
    """

    def __init__(self, forms: Mapping[str, HeldForm], marks: Mapping[str, Mark] | None = None) -> None:
        self._forms = dict(forms)
        self._marks = marks
        #: What was planned for tensors of these forms, the last used at the end.
        self._plans: dict[object, Any] = {}

    def __getitem__(self, name: str) -> HeldForm:
        return self._forms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)

    # Plans are known by these objects, not by what they have.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def kept(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what was made for a key; it is made if it is not there. Those that were not used for longest are dropped."""
        made = self._plans.pop(key) if key in self._plans else make()
        while len(self._plans) >= _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = made
        return made

    def found_in(self, tensors: Mapping[str, Tensor]) -> Held | None:
        """Return what is held now, if tensors of these names still have these forms.

        Args:
            tensors: Tensors of the role's object by name, in the same order.
        """
        if self._marks is None or list(tensors) != list(self._marks):
            return None
        found, owners = [], []
        with torch.no_grad():
            for owner, mark in zip(tensors.values(), self._marks.values(), strict=True):
                tensor = owner
                if (
                    type(tensor) is not mark.kind
                    or tensor.dtype is not mark.dtype
                    or tensor.shape != mark.shape
                ):
                    return None
                if mark.mesh is not None:
                    if tensor.device_mesh is not mark.mesh or tensor.placements != mark.placements:  # type: ignore[attr-defined]
                        return None
                    if mark.size is None:
                        continue
                    tensor = tensor.to_local()  # type: ignore[attr-defined]
                    if tensor.shape != mark.size:
                        return None
                if is_plain(tensor) is not mark.is_plain:
                    return None
                found.append(tensor)
                owners.append(owner)
        return Held(self, found, owners)


class Held:
    """What this worker holds of the tensors of a role now.

    Args:
        forms: Forms of the tensors.
        tensors: What is here of each tensor, in the order of the forms; the memory is the role's own.
        owners: Tensors of the role: DTensors, where what is here are shards. None: they are the same.
    """

    def __init__(self, forms: HeldForms, tensors: list[Tensor], owners: list[Tensor] | None = None) -> None:
        self.forms = forms
        self.tensors = tensors
        self.owners = tensors if owners is None else owners

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """What is here of each tensor."""
        return dict(zip(self.forms, self.tensors, strict=True))

    @cached_property
    def addresses(self) -> _Integers:
        """Where each tensor begins, int64 [tensors].

        Raises:
            FlowError: a tensor has items and no memory.
        """
        found = np.array([tensor.data_ptr() for tensor in self.tensors], np.int64)
        for i in np.flatnonzero(found == 0).tolist():
            if self.tensors[i].numel() and self.tensors[i].is_cpu:
                name = list(self.forms)[i]
                raise FlowError(f"tensor {name} has no memory, its storage was resized; give it memory first")
        return found

    def twins(self) -> frozenset[str]:
        """Return names of tensors that are another one of them under a second name, which would be mixed twice."""
        some = self.addresses[self.addresses != 0]
        return frozenset() if len(np.unique(some)) == len(some) else twins_of(self.by_name)


def twins_of(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return names of tensors that are another one of them under a second name.

    Args:
        tensors: Tensors of one role by name.
    """
    seen: dict[object, str] = {}
    for name, one in tensors.items():
        try:
            # Of a DTensor, and of other tensors without memory of their own, the address is 0 or an error.
            pointer = one.data_ptr() if one.numel() else 0
        except RuntimeError:
            pointer = 0
        key = (pointer, one.shape, one.stride(), one.dtype, one.device) if pointer else id(one)
        seen.setdefault(key, name)
    return frozenset(tensors) - frozenset(seen.values())


def _number_of(name: str) -> int:
    """Return a number that is the same in all processes, and as likely even as odd, even for names that are alike."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
