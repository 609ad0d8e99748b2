"""Datasets that the workers of a role read: each dp rank has a shard, and the master gets places of values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError
from .columns import Columns
from .ranks import heads_of
from .roles import Placement, RoleFunction

__all__ = ["Dataset", "check_read", "dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset of which each dp rank of a role has a shard.

    Attributes:
        role: Role of which the heads read the dataset.
        method: Method of the role that returns a shard.
        columns: Columns that each element has.
        tags: Small values that each element has beside them.
    """

    role: Placement
    method: str
    columns: tuple[str, ...]
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Role and method."""
        return f"{self.role.name}.{self.method}"

    @property
    def heads(self) -> tuple[int, ...]:
        """The worker that reads each shard."""
        return heads_of(self.role)

    def line(self) -> str:
        """Return what a declaration says of it."""
        return f"dataset {self.name}: {', '.join(self.columns)}; tags {', '.join(self.tags) or 'none'}"


def dataset(function: RoleFunction, columns: str, *, tags: str = "") -> Dataset:
    """Declare the source of a flow that is read by workers: a method of a role gives the shard of each dp rank.

    The head of dp rank i of n calls `method(i, n)` after `setup`. It returns a sequence (`len` and indexing), or an
    iterable, of dicts of columns. No element may be in two shards.

    Args:
        function: `role.method` of a placed role. A role without functions is in the flow by this alone.
        columns: names of the columns that each element has, such as "prompt, answer".
        tags: names of small values of each element that become tags of its rows, such as "length".

    Raises:
        ConfigError: it is no method of a placed role, or the names are malformed or occur twice.
    """
    if not isinstance(function, RoleFunction):
        raise ConfigError(
            f"dataset of {function!r}; need a method of a placed role, such as dataset(actor.prompts, ...)"
        )
    read = _names(columns)
    named = _names(tags) if tags.strip() else ()
    both = sorted(set(read) & set(named))
    if both:
        raise ConfigError(f"dataset {function.name}: {', '.join(both)} is a column and a tag; it can be one")
    return Dataset(function.placement, function.method, read, named)


def check_read(datasets: Mapping[str, Dataset], read: Mapping[str, tuple[str, ...]]) -> None:
    """Check that each column of a dataset is read: heads would load and keep the others in vain.

    Args:
        datasets: Datasets by partition.
        read: Columns of the source that functions read, by partition.

    Raises:
        ConfigError: a column is not read.
    """
    for partition, one in datasets.items():
        idle = [column for column in one.columns if column not in read[partition]]
        if idle:
            raise ConfigError(
                f"dataset {one.name} of partition {partition!r} has columns that no function reads: {', '.join(idle)}"
            )


def _names(text: str) -> tuple[str, ...]:
    parsed = Columns.parse(text)
    if parsed.outputs or parsed.input_remap:
        raise ConfigError(f"names {text!r} of a dataset: need names alone, such as 'prompt, answer'")
    return parsed.inputs
