"""What a step of a flow has done."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["CallResult", "FlowStep"]


@dataclass(frozen=True)
class CallResult:
    """One call that is done.

    Attributes:
        function: Name of the function.
        ids: Ids of the rows that it worked on.
        step: Step of the flow to which they belong, from 0.
        age: Age of the rows, see `Rows`.
        numbers: Numbers that the function returned beside columns, and its evaluation.
        seconds: Seconds of each hook and of the main part, by name; "data_transfer" is the reading of the inputs.
        digest: Digest of ids and inputs; empty if the flow takes none.
        not_finite: Number of rows with a NaN or an infinity that a training function has read, by column.
    """

    function: str
    ids: tuple[int, ...]
    step: int = 0
    age: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    not_finite: dict[str, int] = field(default_factory=dict)

    @property
    def all_not_finite(self) -> dict[str, int]:
        """Rows by "column -> function", and 1 by "function -> number" for each number that is NaN or infinite."""
        counts = {f"{column} -> {self.function}": n for column, n in self.not_finite.items()}
        for name, value in self.numbers.items():
            if not math.isfinite(value):
                counts[f"{self.function} -> {name}"] = 1
        return counts


@dataclass(frozen=True)
class FlowStep(Mapping[str, dict[str, float]]):
    """A step of a flow: its functions have used the rows of the step.

    It maps the functions that had a call in the step to their numbers; of several calls, to the means over their rows.

    Attributes:
        number: Number of the step, from 1.
        calls: Calls of the rows of the step, in the order in which they ended.
        n_rows: Number of rows that the largest function had.
        is_complete: Whether it is complete; False for the last one, if the source ended within it.
        waited_s: Seconds from the end of the training call before to the begin of the first one of this step: how
            long training waited for others; 0 if nothing trains.
        dropped: Number of groups that have been dropped since the flow began, by reason.
        repeated: Whether a step of this number was yielded before: the flow has gone back to a common save since
            then. What counts is the last one of a number.
    """

    number: int
    calls: tuple[CallResult, ...]
    n_rows: int
    is_complete: bool
    waited_s: float
    dropped: dict[str, int]
    repeated: bool = False

    @property
    def age_max(self) -> int:
        """Largest age of rows that a training function had."""
        return max((call.age for call in self.calls), default=0)

    @property
    def seconds(self) -> dict[str, float]:
        """Sums of the times of hooks and main parts, by function and name."""
        sums: dict[str, float] = {}
        for call in self.calls:
            for name, seconds in call.seconds.items():
                sums[f"{call.function}: {name}"] = sums.get(f"{call.function}: {name}", 0.0) + seconds
        return sums

    @property
    def not_finite(self) -> dict[str, int]:
        """NaN and infinities of the step: rows by "column -> function" that a training function has read, and calls by
        "function -> number" that have reported one.
        """
        counts: dict[str, int] = {}
        for call in self.calls:
            for name, n in call.all_not_finite.items():
                counts[name] = counts.get(name, 0) + n
        return counts

    def __getitem__(self, function: str) -> dict[str, float]:
        """Return the numbers of a function; of several calls, the means over their rows.

        Raises:
            KeyError: It has no call in the step, such as a training function of which all rows were dropped in the last one.
        """
        calls = [call for call in self.calls if call.function == function]
        if not calls:
            raise KeyError(
                f"{function} has no call in step {self.number}; there are {', '.join(sorted(self))}"
            )
        means: dict[str, float] = {}
        for name in {name: None for call in calls for name in call.numbers}:
            # Of a call of which all rows were dropped, an evaluation has numbers.
            own = [(call.numbers[name], len(call.ids) or 1) for call in calls if name in call.numbers]
            means[name] = sum(value * n for value, n in own) / sum(n for _, n in own)
        return means

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(call.function for call in self.calls))

    def __len__(self) -> int:
        return len({call.function for call in self.calls})

    def __bool__(self) -> bool:
        """Return True: `while step := await flow.step()` ends with the source."""
        return True
