"""A student in a process of its own. It takes batches, checks them, and reports that in lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from softs_fast import CudaIpcMedium, SoftDataLoader, _kernels
from softs_fast.gpu.checks.samples import CONFIGS, check


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(event="log", text=record.getMessage())


def run(options: dict[str, Any]) -> None:
    """Take batches, and keep them until the input ends."""
    config = CONFIGS[options["config"]]
    logging.getLogger("softs_fast").addHandler(_Records())
    n = options["batch_size"]
    loader = SoftDataLoader(
        "p",
        options["frontend"],
        config,
        CudaIpcMedium,
        num_slots=4 * n,
        batch_size=n,
        ordered=True,
        zero_copy=options["zero_copy"],
    )
    batches = iter(loader)
    for i in range(options["n_batches"]):
        got = next(batches)
        check(config, got, list(range(i * n, (i + 1) * n)))
    if options.get("stalled"):
        # As if a long work of the device still read all slots.
        assert loader.soft_dataset._open is not None
        client = loader.soft_dataset._open.client
        assert isinstance(client.medium, CudaIpcMedium)
        assert client.medium.arena is not None
        stream = _kernels.CudaStream(0)
        for event in client.medium.arena.drained:
            event.record(stream.handle)
    say(event="took", n=options["n_batches"])
    sys.stdin.read()
