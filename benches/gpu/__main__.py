"""All benches of the CUDA side: `python -m benches.gpu` writes benches/results/gpu-DEVICE.json.

Without a CUDA device it fails and writes nothing; the stand-in for CUDA is not measured.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from benches.gpu import all_reduce, slot_write, step_copy
from benches.machine import describe_commit, describe_machine
from softs_fast import _kernels
from softs_fast.tensors import cuda

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    """Run all; the exit status."""
    if cuda.is_standin or not cuda.n_devices():
        print("needs a CUDA device, and a build with CUDA: see docs/gpu.md", file=sys.stderr)
        return 1
    device = _kernels.cuda_device_name(0)
    result = {
        "device": device,
        "n_devices": cuda.n_devices(),
        "cuda": _kernels.cuda_build(),
        "torch_cuda": torch.version.cuda,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "commit": describe_commit(),
        "benches": {
            bench.__name__.rpartition(".")[2]: bench.measure()
            for bench in (slot_write, step_copy, all_reduce)
        },
    }
    path = RESULTS / f"gpu-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["benches"], indent=1))
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
