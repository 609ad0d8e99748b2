"""What a flow has decided before anything runs: plain names and numbers, for the pure cores."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FlowPlan", "FunctionPlan", "PartitionPlan"]


@dataclass(frozen=True)
class FunctionPlan:
    """A function; rows are counted in groups, which stay whole.

    Attributes:
        name: Name of the function.
        workers: Workers of its role; empty for a function without a role.
        inputs: Columns that it reads.
        outputs: Columns that it writes.
        groups: Number of groups of one pass.
        least: Groups with which a call may begin.
        reuse: Uses of each group.
        is_strict: Whether groups are taken oldest first, within the window, and their age counts.
        drops_rest: Whether the rest at the end of the source is dropped.
        partition: Partition of the rows that the function works on.
        is_pool: Whether each call runs on one of the workers, which are equal.
    """

    name: str
    workers: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    groups: int
    least: int
    reuse: int = 1
    is_strict: bool = False
    drops_rest: bool = False
    partition: str = "train"
    is_pool: bool = False


@dataclass(frozen=True)
class PartitionPlan:
    """Rows of one purpose.

    Attributes:
        name: Name of the partition.
        groups_per_step: Groups that all functions consume in one step of the flow.
        slots: Groups that may be in the flow at a time.
        age_bound: Largest age of a group, in steps, when a strict function takes it.
    """

    name: str
    groups_per_step: int
    slots: int
    age_bound: int


@dataclass(frozen=True)
class FlowPlan:
    """All functions, in an order in which each comes after those that it reads from.

    Attributes:
        functions: Functions of all partitions.
        partitions: Partitions by name.
        source: Columns that are read of the source, by partition.
        group: Rows of one group.
        window: Number of groups, from the oldest on, among which a strict function may choose.
    """

    functions: tuple[FunctionPlan, ...]
    partitions: dict[str, PartitionPlan]
    source: dict[str, tuple[str, ...]]
    group: int = 1
    window: int = 1

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, sorted."""
        names = {column for function in self.functions for column in (*function.inputs, *function.outputs)}
        return tuple(sorted(names))
