"""What one worker shows of the weights of a role: names, and where in shared memory their regions are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import WireError
from ..moves.places import Part, Place
from .boxes import Box

__all__ = ["Shown", "ShownRegion"]


@dataclass(frozen=True)
class ShownRegion:
    """A region of a tensor.

    Attributes:
        name: of the tensor.
        shape: of the whole tensor.
        start: the first index of the region along each dimension.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """Regions of tensors of a role in the memory of one worker.

    Attributes:
        role: number of the role.
        regions: of the tensors.
        place: of one value, the list of the regions' items; it has their dtypes and sizes.

    Raises:
        WireError: numbers of regions and tensors differ, or a region is not inside of its tensor.
    """

    role: int
    regions: tuple[ShownRegion, ...]
    place: Place

    def __post_init__(self) -> None:
        parts = self.place.parts
        if self.place.kind != "tensors" or len(parts) != len(self.regions):
            raise WireError(
                f"weights have {len(self.regions)} regions and are a {self.place.kind!r} of {len(parts)} tensors"
            )
        for region, (_, size) in zip(self.regions, parts, strict=True):
            shape, start = region.shape, region.start
            if not len(shape) == len(start) == len(size):
                raise WireError(
                    f"region of {region.name}: shape {list(shape)}, start {list(start)}, size {list(size)} differ in "
                    "dimensions"
                )
            if any(a + n > most for a, n, most in zip(start, size, shape, strict=True)):
                raise WireError(
                    f"region of {region.name}: {list(size)} items at {list(start)} are not in a tensor of shape "
                    f"{list(shape)}"
                )

    @property
    def worker(self) -> int:
        """The worker that holds them."""
        return self.place.worker

    def boxes(self) -> Mapping[str, list[Box]]:
        """Return the regions by tensor."""
        found: dict[str, list[Box]] = {}
        for region, part in zip(self.regions, self.place.parts, strict=True):
            found.setdefault(region.name, []).append(_box(region, part))
        return found

    def numbers(self) -> dict[tuple[str, Box], int]:
        """Return the number of each region in the value."""
        pairs = zip(self.regions, self.place.parts, strict=True)
        return {(region.name, _box(region, part)): i for i, (region, part) in enumerate(pairs)}


def _box(region: ShownRegion, part: Part) -> Box:
    return Box(region.start, part[1])
