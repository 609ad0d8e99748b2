"""The GPU check, `softs-fast gpu`: what the CUDA side does on this machine's devices, step by step."""

from .plan import MACHINE, chosen
from .report import Report, device_of
from .run import Outcome, run_step

__all__ = [
    "MACHINE",
    "Outcome",
    "Report",
    "chosen",
    "device_of",
    "run_step",
]
