"""How the workers of a role are arranged, with the names that torch's DeviceMesh has: "pp2 dp2 tp4"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from ...errors import ConfigError

__all__ = ["DIMS", "Layout"]

#: Names of dimensions, each at most once in a layout.
DIMS = ("pp", "dp", "cp", "tp", "ep")
_MOST_WORKERS = 1 << 20


@dataclass(frozen=True)
class Layout:
    """Sizes of the dimensions of a mesh, the outermost first, as `init_device_mesh` takes them.

    Attributes:
        dims: names and sizes.
    """

    dims: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read a layout such as "dp2 tp2".

        Raises:
            ConfigError: a name is unknown or occurs twice, a size is not from 1 to 2^20, or there is none.
        """
        dims: list[tuple[str, int]] = []
        for word in text.split():
            found = re.fullmatch(r"([a-z]+)([0-9]{1,7})", word)
            if found is None or found[1] not in DIMS:
                raise ConfigError(f"layout {text!r}: {word!r} is not one of {', '.join(DIMS)} and a size")
            if found[1] in dict(dims):
                raise ConfigError(f"layout {text!r}: {found[1]} occurs twice")
            dims.append((found[1], int(found[2])))
        n_workers = prod(size for _, size in dims)
        if not dims or not 1 <= n_workers <= _MOST_WORKERS:
            raise ConfigError(
                f"layout {text!r} has {n_workers if dims else 0} workers; need 1 to {_MOST_WORKERS}"
            )
        return cls(tuple(dims))

    @property
    def n_workers(self) -> int:
        """How many workers there are."""
        return prod(size for _, size in self.dims)

    def size(self, dim: str) -> int:
        """Return the size of a dimension; 1 if the layout does not name it."""
        return dict(self.dims).get(dim, 1)

    def coordinates(self, number: int) -> dict[str, int]:
        """Return the place of a worker along each dimension; the last dimension changes first.

        Args:
            number: Number of the worker in the layout, from 0 to n_workers - 1.
        """
        found = {}
        for name, size in reversed(self.dims):
            number, found[name] = divmod(number, size)
        return {name: found[name] for name, _ in self.dims}

    def __str__(self) -> str:
        return " ".join(f"{name}{size}" for name, size in self.dims)
