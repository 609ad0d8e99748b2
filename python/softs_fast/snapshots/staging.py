"""Host memory for tensors on a CUDA device, filled beside the training by a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Staging", "by_device"]


def by_device(tensors: Mapping[str, Tensor]) -> dict[torch.device | None, dict[str, Tensor]]:
    """Return the tensors on each CUDA device, and all others at None."""
    found: dict[torch.device | None, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        device = tensor.device if tensor.device.type == "cuda" else None
        found.setdefault(device, {})[name] = tensor
    return found


class Staging:
    """Pinned memory of the tensors on one device.

    `submit` and `hold` return at once and are for the thread that trains; `finish` waits, in any thread. What is copied
    is what the work that was submitted before `submit`, in the stream of the caller, leaves behind.

    Args:
        device: Device of all tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: dict[str, Tensor] = {}
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def submit(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Submit the copies. The copies before have ended (`finish`).

        Args:
            parameters: Tensors on the device that do not change before `hold`; copied in a stream of their own.
            buffers: Tensors on the device that later work of the caller's stream may change; copied in that stream,
                before such work. Names have the same dtypes and shapes in each call.
        """
        before, self._pinned = self._pinned, {}
        for name, tensor in {**buffers, **parameters}.items():
            known = before.get(name)
            self._pinned[name] = (
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True, device="cpu")
                if known is None
                else known
            )
        current = torch.cuda.current_stream(self._device)
        with torch.no_grad():
            for name, tensor in buffers.items():
                self._pinned[name].copy_(tensor, non_blocking=True)
            # After all that has changed the parameters, and after the copies of the buffers.
            self._side.wait_stream(current)
            with torch.cuda.stream(self._side):
                for name, tensor in parameters.items():
                    self._pinned[name].copy_(tensor, non_blocking=True)
                self._copied.record(self._side)

    def hold(self) -> None:
        """Let later work of the caller's stream, such as a step of the optimizer, wait for the copies; not the caller."""
        torch.cuda.current_stream(self._device).wait_event(self._copied)

    def finish(self) -> Mapping[str, Tensor]:
        """Wait for the copies; return them. They are valid until the next `submit`."""
        self._copied.synchronize()
        return self._pinned
