"""Averages of snapshots of several processes, applied to tensors in place."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .. import _kernels
from ..errors import ConfigError, NotFinite
from .layout import SnapshotLayout
from .window import Header, RemoteWindow, header_of, is_plain

__all__ = ["average"]


def average(
    windows: Sequence[RemoteWindow],
    weights: Sequence[float],
    into: Mapping[str, Tensor],
    layout: SnapshotLayout,
    *,
    scratch: Tensor | None = None,
) -> list[Header] | None:
    """Replace tensors by a weighted sum of the newest snapshots of other processes; nothing waits for those.

    The donors' memory is read once, into `scratch`. Only if no donor has written to it meanwhile, and all results are
    finite, they are copied into the tensors; otherwise the tensors are unchanged. Up to three attempts.

    Floats are the sum of weight * item, in the order of the windows, in float32 (float64 for float64), rounded once.
    Integers and bool are the largest. One window with the weight 1 is a copy.

    Args:
        windows: of the donors, one or more.
        weights: of each donor; above 0, finite; for a mean they sum up to 1.
        into: the tensors that are replaced, on any device; contiguous ones in host memory are the fastest.
        layout: of the tensors.
        scratch: `layout.scratch()`, to be used again by later calls; without it, new memory is taken each time.

    Returns:
        The header of each snapshot that was used. None if a donor has published nothing yet, or at each attempt has
        published twice meanwhile.

    Raises:
        ConfigError: the tensors or a window do not fit the layout, or a weight is none.
        NotFinite: a result is infinite or NaN; the text names the tensor and the donor.
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
    targets = layout.bind(into)
    if scratch is None:
        scratch = layout.scratch()
    elif scratch.dtype is not torch.uint8 or scratch.shape != (layout.n_bytes,) or not is_plain(scratch):
        raise ConfigError(
            f"scratch is {scratch.dtype} {list(scratch.shape)}; need layout.scratch(), uint8 [{layout.n_bytes}]"
        )
    natives = [window.native for window in windows]
    outcome, donor, at, seen = _kernels.snapshot_average(
        natives, list(weights), layout.runs, scratch.data_ptr()
    )
    if outcome == "not finite":
        raise _not_finite(layout, at, windows, donor)
    if outcome != "complete":
        return None
    headers = [header_of(one) for one in seen]
    _apply(layout, scratch, targets)
    return headers


def _apply(layout: SnapshotLayout, scratch: Tensor, targets: list[Tensor]) -> None:
    """Copy a whole snapshot into the tensors of its layout."""
    rows = [
        (tensor.data_ptr(), entry.offset, entry.n_bytes)
        for tensor, entry in zip(targets, layout.tensors, strict=True)
        if is_plain(tensor)
    ]
    _kernels.snapshot_scatter(scratch.data_ptr(), rows)
    with torch.no_grad():
        if len(rows) < len(targets):
            for target, source in zip(targets, layout.views(scratch), strict=True):
                if not is_plain(target):
                    target.copy_(source)
        # As an operation of torch would do, so that autograd refuses to use what it saved before.
        torch.autograd.graph.increment_version([target for target in targets if target.requires_grad])


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
