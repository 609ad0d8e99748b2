"""A student in a process of its own: `student.py OPTIONS`, JSON. It takes batches, checks them, and says so."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from cuda_samples import CONFIGS, check

from softs_fast import CudaIpcMedium, SoftDataLoader, _kernels

OPTIONS = json.loads(sys.argv[1])
CONFIG = CONFIGS[OPTIONS["config"]]


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(event="log", text=record.getMessage())


def main() -> None:
    logging.getLogger("softs_fast").addHandler(_Records())
    n = OPTIONS["batch_size"]
    loader = SoftDataLoader(
        "p",
        OPTIONS["frontend"],
        CONFIG,
        CudaIpcMedium,
        num_slots=4 * n,
        batch_size=n,
        ordered=True,
        zero_copy=OPTIONS["zero_copy"],
    )
    batches = iter(loader)
    for i in range(OPTIONS["n_batches"]):
        got = next(batches)
        check(CONFIG, got, list(range(i * n, (i + 1) * n)))
    if OPTIONS.get("stalled"):
        # As if a long work of the device still read all slots.
        client = loader.soft_dataset._client
        assert client is not None
        assert isinstance(client.medium, CudaIpcMedium)
        assert client.medium.arena is not None
        stream = _kernels.CudaStream(0)
        for event in client.medium.arena.drained:
            event.record(stream.handle)
    say(event="took", n=OPTIONS["n_batches"])
    sys.stdin.read()


if __name__ == "__main__":
    main()
