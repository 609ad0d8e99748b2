"""The reports of a rank in shared memory: a window of their own, so that a report copies no weights."""

from __future__ import annotations

import math
from collections import deque

import torch

from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import SegmentError
from softs_fast.records import from_plain
from softs_fast.snapshots import RemoteWindow, SnapshotLayout, Window

# A window needs a tensor; the reports are in its config.
_NOTHING = {"reports": torch.zeros(1, dtype=torch.uint8, device="cpu")}


class ReportLine:
    """The newest reports of this rank, for others of its host.

    Raises:
        SegmentError: no shared memory.
    """

    def __init__(self) -> None:
        self.window = Window(SnapshotLayout.of(_NOTHING))
        self._reports: deque[Report] = deque(maxlen=MAX_REPORTS)

    def add(self, report: Report) -> None:
        """Show a report to the others."""
        self._reports.append(report)
        rows = [[one.check, _text(one.metric), one.trained] for one in self._reports]
        self.window.publish(
            _NOTHING, step=report.check, metric=None, trained=report.trained, config={"reports": rows}
        )

    def close(self) -> None:
        """Close the window; a second call does nothing."""
        self.window.close()


def read_reports(window: RemoteWindow) -> tuple[Report, ...]:
    """Return the reports of another rank, the newest one last.

    Raises:
        SegmentError: The window is malformed.
    """
    config = window.header().config
    if config is None:
        return ()
    try:
        rows = [
            (check, None if metric is None else float(metric), trained)
            for check, metric, trained in config["reports"][-MAX_REPORTS:]
        ]
        found: tuple[Report, ...] = from_plain(tuple[Report, ...], rows)
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise SegmentError(f"the reports of a rank are malformed: {error!r}") from error


def _text(metric: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return metric if metric is None or math.isfinite(metric) else str(metric)
