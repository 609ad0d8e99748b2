"""A parameter server's numbers in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter

from ....monitoring.families import Family, one, text_of
from ..driver import Driver
from .uploads import Uploads

__all__ = ["render"]


def render(driver: Driver, uploads: Uploads, received_bytes: int, sent_bytes: int) -> str:
    """Return all numbers as text."""
    status = driver.status()
    states = Counter(one.state for one in status.members)
    run_states = ("waiting", "open", "grace", "apply", "paused", "done")
    families: list[Family] = [
        ("paramserver_version", "gauge", "Version of the weights.", one(status.version)),
        ("paramserver_timeline", "gauge", "Times that the server was started.", one(status.timeline)),
        (
            "paramserver_state",
            "gauge",
            "1 for what the run does.",
            [({"state": name}, float(status.state == name)) for name in run_states],
        ),
        (
            "paramserver_workers",
            "gauge",
            "Workers by state.",
            [({"state": name}, float(states[name])) for name in ("joining", "active", "paused", "stalled")],
        ),
        ("paramserver_pushes_pending", "gauge", "Pushes that no step has used.", one(status.have)),
        ("paramserver_samples_total", "counter", "Samples that steps have used.", one(status.samples)),
        (
            "paramserver_refused_total",
            "counter",
            "Requests with a push that did not count.",
            one(status.refused),
        ),
        ("paramserver_skipped_total", "counter", "Steps that were not finite.", one(status.skipped)),
        ("paramserver_received_bytes_total", "counter", "Bytes of pushes.", one(received_bytes)),
        ("paramserver_sent_bytes_total", "counter", "Bytes of weights.", one(sent_bytes)),
        ("paramserver_upload_bytes", "gauge", "Memory of pushes.", one(uploads.n_bytes)),
        ("paramserver_step_seconds", "gauge", "Length of the last step.", one(driver.step_s)),
        (
            "paramserver_file_failing",
            "gauge",
            "1 if the last file could not be written.",
            one(float(driver.file_trouble is not None)),
        ),
    ]
    if status.loss is not None:
        families.append(("paramserver_loss", "gauge", "Mean loss of the last step.", one(status.loss)))
    if driver.evaluation.last is not None:
        families.append(
            ("paramserver_metric", "gauge", "Result of the last evaluation.", one(driver.evaluation.last))
        )
    return text_of(families)
