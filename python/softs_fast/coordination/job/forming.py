"""Whether an epoch can be opened now, and with which seats: a function of what is known, with its reason in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .options import JobOptions


@dataclass(frozen=True)
class SeatView:
    """A seat, as far as it matters here.

    Attributes:
        seat: its number.
        name: how texts name it.
        is_ready: whether its worker waits for a table.
        is_survivor: whether its worker was in the epoch before, and has its weights.
        is_expected: whether the table waits for it.
        is_holder: whether its worker has the weights of the epoch before, or may say that it has them.
    """

    seat: int
    name: str
    is_ready: bool
    is_survivor: bool
    is_expected: bool
    is_holder: bool = False


@dataclass(frozen=True)
class Waiting:
    """Why there is no table.

    Attributes:
        reason: Reason for the wait, as text for the user.
        has_enough: Whether there would be a table if it did not wait for more workers.
    """

    reason: str
    has_enough: bool


def form(
    options: JobOptions, views: Sequence[SeatView], *, is_first: bool, is_over: bool
) -> tuple[int, ...] | Waiting:
    """Return the seats of the members of the next epoch in their order, or why it is not opened.

    It is opened with all seats; or, after another one, if all that are expected are ready; or at the end of the window
    with those that are ready. Survivors come before others, and low seats before high ones. Without a survivor it is
    not opened while there is a holder, which may still become ready, or its block whole: else the training would begin
    anew, or go back to a checkpoint.

    Args:
        options: Options of the job.
        views: Seats that have a worker, one view for each.
        is_first: Whether no epoch was open before.
        is_over: Whether the window has ended.

    Source: own; after torchft's quorum, which is a function that explains itself, too.
    """
    ready = {view.seat for view in views if view.is_ready}
    survivors = {view.seat for view in views if view.is_survivor}
    chosen = choose(options, ready, survivors)
    if len(chosen) == options.n_seats:
        return chosen
    holders = [view for view in views if view.is_holder]
    if chosen and holders and survivors.isdisjoint(chosen):
        names = ", ".join(view.name for view in holders)
        return Waiting(
            f"{len(ready)} workers are ready, but none that can be a member has the weights of the epoch before; "
            f"waiting for {names}",
            True,
        )
    awaited = [view for view in views if view.is_expected and not view.is_ready]
    may_form = is_over or (not is_first and not awaited)
    if chosen and may_form:
        return chosen
    need = str(options.n_seats) if options.is_fixed else f"{options.min_workers} to {options.n_seats}"
    multiple = f" in multiples of {options.step}" if options.step > 1 else ""
    names = ", ".join(view.name for view in awaited or (view for view in views if not view.is_ready))
    taken = {view.seat for view in views}
    empty = _ranges(seat for seat in range(options.n_seats) if seat not in taken)
    waits = [names] if names else []
    if empty and not (chosen and awaited):
        waits.append(f"workers for seat {empty}")
    return Waiting(
        f"{len(ready)} workers are ready, need {need}{multiple}; waiting for {' and '.join(waits) or 'more'}",
        bool(chosen),
    )


def choose(options: JobOptions, ready: set[int], survivors: set[int]) -> tuple[int, ...]:
    """Return as many seats as can be members together, whole blocks of them; none if they are too few."""
    blocks: dict[int, list[int]] = {}
    for seat in sorted(ready):
        blocks.setdefault(seat // options.block_size, []).append(seat)
    whole = [seats for seats in blocks.values() if len(seats) == options.block_size]
    whole.sort(key=lambda seats: (survivors.isdisjoint(seats), seats[0]))
    n = options.largest(len(whole) * options.block_size)
    return tuple(sorted(seat for seats in whole[: n // options.block_size] for seat in seats))


def _ranges(seats: Iterable[int]) -> str:
    """Return numbers in words, as 1, 3 to 5."""
    parts: list[tuple[int, int]] = []
    for seat in seats:
        if parts and parts[-1][1] == seat - 1:
            parts[-1] = (parts[-1][0], seat)
        else:
            parts.append((seat, seat))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts)
