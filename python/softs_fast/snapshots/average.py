"""Averages of snapshots of several processes, applied to tensors in place."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _kernels
from ..errors import ConfigError, NotFinite
from ..tensors import is_plain, mark_written
from .layout import SnapshotLayout, TensorEntry
from .window import Header, RemoteWindow, header_of

__all__ = ["Fetched", "average", "fetch"]


@dataclass(frozen=True)
class Fetched:
    """A weighted sum of snapshots in private memory, whole and finite; made by `fetch`.

    Attributes:
        headers: Header of each snapshot that was used.
        layout: Layout of the tensors.
        memory: uint8 [layout.n_bytes]; `layout.views(memory)` are its tensors.
    """

    headers: list[Header]
    layout: SnapshotLayout
    memory: Tensor

    def apply(self, into: Mapping[str, Tensor]) -> None:
        """Copy it into tensors, in place.

        Args:
            into: Tensors on any device; contiguous tensors in host memory are the fastest.

        Raises:
            ConfigError: the tensors do not fit the layout; none has changed.
        """
        self._copy(self.layout.bind(into, written=True), self.layout.tensors)
        mark_written(into.values())

    def apply_part(self, into: Mapping[str, Tensor]) -> None:
        """Copy some of the tensors, in place.

        Args:
            into: Tensors as for `apply`, but only some of them.

        Raises:
            ConfigError: a tensor is not of the layout; none has changed.
        """
        entries, targets = self.layout.bind_part(into, written=True)
        self._copy(targets, entries)
        mark_written(into.values())

    def _copy(self, targets: Sequence[Tensor], entries: Sequence[TensorEntry]) -> None:
        plain = [is_plain(target) for target in targets]
        rows = [
            (target.data_ptr(), entry.offset, entry.n_bytes)
            for target, entry, is_in_place in zip(targets, entries, plain, strict=True)
            if is_in_place
        ]
        _kernels.snapshot_scatter(self.memory.data_ptr(), rows)
        with torch.no_grad():
            for target, entry, is_done in zip(targets, entries, plain, strict=True):
                if not is_done:
                    target.copy_(entry.view(self.memory))


def fetch(
    windows: Sequence[RemoteWindow],
    weights: Sequence[float],
    layout: SnapshotLayout,
    *,
    scratch: Tensor | None = None,
    as_is: Set[str] = frozenset(),
) -> Fetched | None:
    """Return a weighted sum of the newest snapshots of other processes; nothing waits for those.

    The donors' memory is read once, without the GIL, so this may run beside the training, in a thread. It is tried up
    to three times.

    Floats are the sum of weight * item, in the order of the windows, in float32 (float64 for float64), rounded once.
    Integers and bool are the largest. One window with the weight 1 is a copy.

    Args:
        windows: Windows of the donors, one or more.
        weights: Weight of each donor; above 0, finite; for a mean they sum up to 1.
        layout: Layout of the tensors.
        scratch: Memory from `layout.scratch()`, to be used again by later calls; without it, new memory is taken each
            time.
        as_is: Names of tensors that may be infinite or NaN, such as buffers with masks.

    Returns:
        The sum. None if a donor has published nothing yet, or at each attempt has published twice meanwhile.

    Raises:
        ConfigError: a window does not fit the layout, or a weight is none.
        NotFinite: a result that is not `as_is` is infinite or NaN; the text names the tensor and the donor.
        SegmentError: a segment is malformed.
        ForkedError: called in a fork of the process that opened a window.

    Source: own, see docs/snapshots.md.
    """
    if not windows or len(windows) != len(weights):
        raise ConfigError(
            f"{len(windows)} windows and {len(weights)} weights; need one or more of each, as many"
        )
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ConfigError(f"weights are {list(weights)}; need finite numbers above 0")
    for window in windows:
        if window.digest != layout.digest:
            there = f"in process {window.address['pid']}"
            raise ConfigError(f"models differ: {layout.difference(window.layout, 'here', there)}")
    if scratch is None:
        scratch = layout.scratch()
    elif scratch.dtype is not torch.uint8 or scratch.shape != (layout.n_bytes,) or not is_plain(scratch):
        raise ConfigError(
            f"scratch is {scratch.dtype} {list(scratch.shape)}; need layout.scratch(), uint8 [{layout.n_bytes}]"
        )
    natives = [window.native for window in windows]
    inspected, others = layout.runs_apart(as_is)
    outcome, donor, at, seen = _kernels.snapshot_average(
        natives, list(weights), inspected, scratch.data_ptr(), *filter(None, [others])
    )
    if outcome == "not finite":
        raise _not_finite(layout, at, windows, donor)
    if outcome != "complete":
        return None
    return Fetched([header_of(one) for one in seen], layout, scratch)


def average(
    windows: Sequence[RemoteWindow],
    weights: Sequence[float],
    into: Mapping[str, Tensor],
    layout: SnapshotLayout,
    *,
    scratch: Tensor | None = None,
    as_is: Set[str] = frozenset(),
) -> list[Header] | None:
    """Replace tensors by a weighted sum of the newest snapshots of other processes: `fetch`, then `Fetched.apply`.

    Only a sum that is whole and finite is copied into the tensors; otherwise they are unchanged.

    Args:
        windows: Windows of the donors, as for `fetch`.
        weights: Weight of each donor, as for `fetch`.
        into: Tensors that are replaced.
        layout: Layout of the tensors.
        scratch: Memory for the sum, as for `fetch`.
        as_is: Names of tensors that may be infinite or NaN, as for `fetch`.

    Returns:
        The header of each snapshot that was used; None where `fetch` returns None.

    Raises:
        ConfigError: as for `fetch`, or the tensors do not fit the layout.
        NotFinite: a result that is not `as_is` is infinite or NaN; the text names the tensor and the donor.
        SegmentError: a segment is malformed.
        ForkedError: called in a fork of the process that opened a window.

    Example:
        >>> from softs_fast.snapshots import Window
        >>> ours, theirs = {"w": torch.zeros(3)}, {"w": torch.arange(3.0)}
        >>> layout = SnapshotLayout.of(ours)
        >>> with Window(layout) as window, RemoteWindow.open(window.address) as donor:
        ...     _ = window.publish(theirs, step=100, metric=0.5, trained=100)
        ...     headers = average([donor], [1.0], ours, layout)
        >>> ours["w"].tolist()
        [0.0, 1.0, 2.0]
    """
    fetched = fetch(windows, weights, layout, scratch=scratch, as_is=as_is)
    if fetched is None:
        return None
    fetched.apply(into)
    return fetched.headers


def _not_finite(layout: SnapshotLayout, at: int, windows: Sequence[RemoteWindow], donor: int) -> NotFinite:
    entry = layout.tensors[bisect_right([entry.offset for entry in layout.tensors], at) - 1]
    if donor < 0:
        return NotFinite(
            f'the sum of "{entry.names[0]}" ({entry}) exceeds its dtype; use weights that sum up to 1', -1
        )
    return NotFinite(
        f'"{entry.names[0]}" ({entry}) of process {windows[donor].address["pid"]} (donor {donor}) is not finite; '
        "leave this donor out",
        donor,
    )
