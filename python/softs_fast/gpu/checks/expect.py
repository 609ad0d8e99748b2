"""How a check fails. `assert` is not used: `python -O` would remove it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["CheckFailed", "expect", "expect_bits", "expect_raises", "same_bits"]

E = TypeVar("E", bound=BaseException)


class CheckFailed(AssertionError):
    """Something on a device is not as it must be."""


def expect(condition: object, what: str) -> None:
    """Raises CheckFailed with `what` if the condition is false."""
    if not condition:
        raise CheckFailed(what)


def same_bits(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether a tensor anywhere has the bytes of one on the host."""
    return torch.equal(got.cpu().contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


def expect_bits(got: torch.Tensor, wanted: torch.Tensor, what: object) -> None:
    """Raises CheckFailed, with the first item that differs, if tensors [n] of one dtype differ in a bit."""
    if same_bits(got, wanted):
        return
    pairs = (
        torch.stack([got.cpu().contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)])
        if got.shape == wanted.shape and got.dtype == wanted.dtype
        else None
    )
    if pairs is None:
        raise CheckFailed(
            f"{what}: got {got.dtype} {list(got.shape)}, need {wanted.dtype} {list(wanted.shape)}"
        )
    n_wrong = int((pairs[0] != pairs[1]).sum())
    first = int((pairs[0] != pairs[1]).flatten().nonzero()[0]) // wanted.element_size()
    raise CheckFailed(
        f"{what}: {n_wrong} of {wanted.nbytes} bytes differ, first in item {first}: "
        f"got {got.flatten()[first].item()!r}, need {wanted.flatten()[first].item()!r}"
    )


def expect_raises(kind: type[E], call: Callable[[], object], what: str) -> E:
    """Return the error of this kind that a call raises; raises CheckFailed if it raises none."""
    try:
        call()
    except kind as error:
        return error
    raise CheckFailed(f"{what}: raised no {kind.__name__}")
