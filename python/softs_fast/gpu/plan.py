"""The steps of the check, in the order of what they prove per second. Pure: no process, no clock, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["MACHINE", "STEPS", "Step", "chosen"]


@dataclass(frozen=True)
class Step:
    """One step, which runs in processes of its own.

    Attributes:
        name: Name by which the step is chosen and reported.
        proves: One line that says what a success of the step proves.
        function: Function of the step as `module:name`; takes `quick`, returns what is reported.
        limit_s: Longest time that the step may take, seconds.
        needs_gpu: Whether the stand-in for CUDA cannot run it, because torch has no CUDA tensors there.
    """

    name: str
    proves: str
    function: str
    limit_s: float
    needs_gpu: bool = False


_CHECKS, _MEASURES = "softs_fast.gpu.checks", "softs_fast.gpu.measures"

#: Before all others, always: without a device that can be used there are no others.
MACHINE = Step(
    "machine", "driver, runtime, torch and devices fit together", "softs_fast.gpu.machine:look", 60
)

STEPS = (
    Step("facts", "what the driver does where its manual is silent", f"{_CHECKS}.facts:probe", 120),
    Step("memory", "two processes share memory and events", f"{_CHECKS}.memory:check", 30),
    Step("pack", "packing and casting kernel, bit for bit", f"{_CHECKS}.pack:check", 60),
    Step("reduce", "reduce kernel, bit for bit as the host", f"{_CHECKS}.reduce:check", 60),
    Step("all-reduce-2", "all-reduce of 2 processes, bit for bit", f"{_CHECKS}.all_reduce:among_two", 60),
    Step("all-reduce-4", "all-reduce of 4 processes, bit for bit", f"{_CHECKS}.all_reduce:among_four", 60),
    Step("medium", "samples of another process on the device", f"{_CHECKS}.medium:check", 60),
    Step("pinned", "copies of batches that were dropped are whole", f"{_CHECKS}.pinned:check", 60, True),
    Step("deaths", "killed ranks are named, the group rebuilt", f"{_CHECKS}.deaths:check", 90),
    Step("teacher-deaths", "a stream stays whole without a teacher", f"{_CHECKS}.medium:check_deaths", 90),
    Step("slot-write", "rate and fixed cost of a slot", f"{_MEASURES}.slot_write:measure", 60),
    Step("all-reduce-times", "times of all-reduce on one device", f"{_MEASURES}.all_reduce:measure", 120),
    Step("step-copy", "whether a step waits for its batch", f"{_MEASURES}.step_copy:measure", 60, True),
    Step("in-kernel", "all-reduce with waits inside the kernel", f"{_CHECKS}.all_reduce:in_kernel", 60),
)


def chosen(names: Sequence[str] | None) -> list[Step]:
    """Return the steps of these names, in the order of STEPS; None: all.

    Raises:
        ConfigError: there is no such step.
    """
    if names is None:
        return list(STEPS)
    known = [step.name for step in STEPS]
    for name in names:
        if name not in known:
            raise ConfigError(f'there is no step "{name}"; need some of: {", ".join(known)}')
    return [step for step in STEPS if step.name in names]
