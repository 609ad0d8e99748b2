"""Which calls a rank has submitted, and which of them it knows to be complete: calls return before devices are done."""

from __future__ import annotations


class Completion:
    """Counts the calls of one group, as this rank sees them."""

    def __init__(self) -> None:
        self._submitted = 0
        self._completed = 0
        self._failed_after: int | None = None

    def submit(self) -> None:
        """A call has returned."""
        self._submitted += 1

    def complete(self) -> None:
        """All submitted calls are done on the device."""
        self._completed = self._submitted

    def fail(self, *, in_doubt: bool) -> None:
        """The group has failed; only the first time counts.

        Args:
            in_doubt: whether all calls that are not known to be complete have failed, and not only the last one.
        """
        if self._failed_after is None:
            self._failed_after = self._completed if in_doubt else self._submitted

    @property
    def completed(self) -> int:
        """Calls that are known to be complete."""
        return self._completed

    @property
    def failed_after(self) -> int:
        """Calls before the first one that failed."""
        return self._submitted if self._failed_after is None else self._failed_after
