"""Where a dataset reads which product is wanted."""

from __future__ import annotations

from typing import Protocol

from ...market import LeaveAfter

__all__ = ["ProductSource"]


class ProductSource(Protocol):
    """Names the product that is wanted now; any process may change it at any time."""

    def version(self) -> int:
        """Return a number that each change of the product changes, even a change back.

        The product that is read after this number is of this version or of a later one.
        """

    def read(self) -> str:
        """Return the product."""

    def sleep_while(self, version: int, product: str, leave_after: LeaveAfter) -> None:
        """Sleep until another version is wanted or `wake` is called; may return early.

        Args:
            version: Version that is wanted now; the call returns when it is another one.
            product: Product that the client leaves as soon as another version is wanted.
            leave_after: Function with the arguments of `Client.leave_after`.
        """

    def wake(self) -> None:
        """Wake all threads that sleep in `sleep_while`, in all processes."""
