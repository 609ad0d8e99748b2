"""The work that functions and hooks have submitted to devices: a step ends when it is done, not when it is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...user_code import is_ctrl_c

__all__ = ["device_work", "wait_for_devices"]

#: Modules of torch, or that extensions register with it, which have `is_initialized` and `synchronize`. Asking
#: `torch.accelerator` for the one of now may begin to use CUDA in torch 2.6.
_KINDS = ("cuda", "xpu", "mtia", "npu")


@contextmanager
def device_work() -> Iterator[None]:
    """Wait at the end of the block for all that it has submitted to devices, also if it raises.

    Raises:
        RuntimeError: work on a device has failed. If the block has raised, its own exception says so in a note.
    """
    try:
        yield
    except BaseException as error:
        if not is_ctrl_c(error):
            try:
                wait_for_devices()
            except Exception as late:
                error.add_note(f"work on a device has failed, too: {late}")
        raise
    wait_for_devices()


def wait_for_devices() -> None:
    """Wait for the work in all streams of the devices that this process uses.

    Nothing happens, and no device is initialized, if torch has not initialized one. A device is used if torch has memory
    there: a context of CUDA is not made on others. Where an allocator does not tell, it is the current device alone.

    Raises:
        RuntimeError: work that was submitted before has failed.
    """
    modules = vars(torch)
    for kind in _KINDS:
        module = modules.get(kind)
        if module is not None and module.is_initialized():
            for device in _used(module):
                module.synchronize(device)


def _used(module: Any) -> list[int]:
    reserved = getattr(module, "memory_reserved", None)
    if reserved is not None:
        try:
            return [device for device in range(module.device_count()) if reserved(device)]
        except RuntimeError:
            pass  # an allocator of the user's has no such numbers
    return [module.current_device()]
