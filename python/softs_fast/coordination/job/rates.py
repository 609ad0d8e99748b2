"""How fast members train on live samples, and what they wait for: from what they report in their steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Report, Saved

# Rates are of the last seconds: of so many at least, once there are as many, and of twice as many at most.
_WINDOW_S = 5.0
# A member that waits for samples reports once a second.
_FRESH_S = 3.0


@dataclass
class _Window:
    """Reports of a seat: the first one of the window, one in its middle, the last one, and the time of that."""

    first: Report
    middle: Report
    last: Report
    at_s: float

    def add(self, now_s: float, report: Report) -> None:
        self.last, self.at_s = report, now_s
        if report.elapsed_s >= self.middle.elapsed_s + _WINDOW_S:
            self.first, self.middle = self.middle, report

    @property
    def span_s(self) -> float:
        return self.last.elapsed_s - self.first.elapsed_s


@dataclass
class Rates:
    """Of the present epoch; and the last checkpoint, which is of any.

    Attributes:
        windows: Reports by seat.
    """

    windows: dict[int, _Window] = field(default_factory=dict)
    # The last checkpoint, and when it was on disk.
    _saved: tuple[float, Saved] | None = None

    def begin(self) -> None:
        """Begin an epoch."""
        self.windows = {}

    def note(self, now_s: float, seat: int, report: Report) -> None:
        """Note what a seat reports."""
        window = self.windows.setdefault(seat, _Window(report, report, report, now_s))
        window.add(now_s, report)
        if report.saved is not None:
            at_s = now_s - report.saved.age_s
            # The one that is on disk since last may be of an earlier step: a job begins with an older checkpoint.
            if self._saved is None or at_s >= self._saved[0]:
                self._saved = at_s, report.saved

    @property
    def samples_per_s(self) -> float:
        """Samples that all members train in a second; 0 if it is not known."""
        windows = [one for one in self.windows.values() if one.span_s > 0]
        return sum((one.last.n_samples - one.first.n_samples) / one.span_s for one in windows)

    def starvation(self, seat: int) -> float:
        """Return the share of the time in which a seat has waited for samples, 0 to 1; 0 if it is not known."""
        window = self.windows.get(seat)
        if window is None or window.span_s <= 0:
            return 0.0
        return min(1.0, (window.last.waiting_s - window.first.waiting_s) / window.span_s)

    def lacks_s(self, now_s: float, seat: int) -> float:
        """Return for how long a seat has waited for the samples that are due now, seconds; 0 if it waits for none."""
        window = self.windows.get(seat)
        if window is None or not window.last.lacks_s or now_s > window.at_s + _FRESH_S:
            return 0.0
        return window.last.lacks_s + now_s - window.at_s

    def saved(self, now_s: float) -> Saved | None:
        """Return the last checkpoint."""
        if self._saved is None:
            return None
        at_s, saved = self._saved
        return Saved(saved.step, max(0.0, now_s - at_s), saved.write_s)
