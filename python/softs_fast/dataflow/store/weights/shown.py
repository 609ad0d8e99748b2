"""What one worker shows of the weights of a role: names, and where in shared memory their regions are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import msgpack

from ....errors import WireError
from ..places import ITEM_BYTES, Place, spread
from .boxes import Box

__all__ = ["Shown", "ShownLayout", "ShownRegion"]


@dataclass(frozen=True, slots=True)
class ShownRegion:
    """A region of a tensor.

    Attributes:
        name: Name of the tensor.
        shape: Shape of the whole tensor.
        box: Box of the region.
        dtype: Dtype of the tensor, one of `ITEM_BYTES`.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Bytes of its items."""
        return ITEM_BYTES[self.dtype] * self.box.n_items


class ShownLayout:
    """Regions of tensors, in the order in which they lie in memory; the same as long as no tensor changes its form.

    Layouts are equal if their digests are.

    Args:
        regions: Regions of the tensors, each once.

    Raises:
        WireError: a region is not inside of its tensor, or is there twice.
    """

    def __init__(self, regions: tuple[ShownRegion, ...]) -> None:
        self.regions = regions
        for region in regions:
            shape, box = region.shape, region.box
            if not len(shape) == len(box.start) == len(box.size):
                raise WireError(
                    f"region of {region.name}: shape {list(shape)}, start {list(box.start)}, size {list(box.size)} "
                    "differ in dimensions"
                )
            if any(a + n > most for a, n, most in zip(box.start, box.size, shape, strict=True)):
                raise WireError(
                    f"region of {region.name}: {list(box.size)} items at {list(box.start)} are not in a tensor of shape "
                    f"{list(shape)}"
                )
        #: The number of each region, by tensor and box.
        self.numbers = {(region.name, region.box): i for i, region in enumerate(regions)}
        if len(self.numbers) != len(regions):
            raise WireError(
                f"{len(regions)} regions of tensors are shown, {len(self.numbers)} different ones"
            )
        #: Where each begins, from the first byte of the value; and bytes of the value.
        self.offsets, self.n_bytes = spread([(one.dtype, one.box.size) for one in regions])

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that other layouts do not have."""
        return blake2b(msgpack.packb(self.as_wire(), unicode_errors="surrogatepass"), digest_size=16).digest()

    @cached_property
    def boxes(self) -> Mapping[str, list[Box]]:
        """The regions by tensor."""
        found: dict[str, list[Box]] = {}
        for region in self.regions:
            found.setdefault(region.name, []).append(region.box)
        return found

    def as_wire(self) -> list[list[object]]:
        """Return it as plain types."""
        return [[one.name, one.shape, one.box.start, one.box.size, one.dtype] for one in self.regions]

    def item_bytes(self) -> dict[str, int]:
        """Return the bytes of an item of each tensor."""
        return {region.name: ITEM_BYTES[region.dtype] for region in self.regions}

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same regions."""
        return self is other or (isinstance(other, ShownLayout) and self.digest == other.digest)

    def __hash__(self) -> int:
        """Return a hash of the digest."""
        return hash(self.digest)


@dataclass(frozen=True)
class Shown:
    """Regions of tensors of a role in the memory of one worker.

    Attributes:
        role: Number of the role.
        layout: Layout of the regions.
        place: Place of one value, the bytes of all regions.

    Raises:
        WireError: the value has not as many bytes as the layout.
    """

    role: int
    layout: ShownLayout
    place: Place

    def __post_init__(self) -> None:
        if self.place.kind != "bytes" or self.place.n_bytes != self.layout.n_bytes:
            raise WireError(
                f"weights are {self.place.kind!r} of {self.place.n_bytes} bytes; need bytes, {self.layout.n_bytes} for "
                f"{len(self.layout.regions)} regions"
            )

    @property
    def worker(self) -> int:
        """The worker that holds them."""
        return self.place.worker
