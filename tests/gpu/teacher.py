"""A teacher in a process of its own. It reports in lines of JSON what happens, and ends with its input."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

import torch

from softs_fast import CudaIpcMedium, ShmMedium, Supplier
from softs_fast.gpu.checks.on_device import to_device
from softs_fast.gpu.checks.samples import CONFIGS, batch, sample
from softs_fast.market.device_output import DeviceOutput
from softs_fast.market.mediums.cuda.remote_arena import RemoteArena

_lock = threading.Lock()


def say(**event: Any) -> None:
    with _lock:
        print(json.dumps(event), flush=True)


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(event="log", text=record.getMessage())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Maker:
    """The functions that make the samples of one product.

    Args:
        config: name of what a sample is made of.
        where: the tensors are: device, host, array (on the host), mixed.
        device: number of the device.
        wide: floats are to be cast on the way.
    """

    def __init__(self, config: str, where: str, device: int, wide: bool) -> None:
        self.config = CONFIGS[config]
        self._where = where
        self._device = device
        self._wide = wide

    def arguments(self, kind: str) -> dict[str, Any]:
        """What a Supplier takes."""
        return {
            "sample": {"generator_fn": self.sample, "batch_config": self.config},
            "bytes": {"generator_fn": self.encoded},
            "batch": {"batch_generator_fn": self.batch, "batch_config": self.config, "max_batch": 5},
            "batch of bytes": {"batch_generator_fn": self.batch_of_bytes},
            "fill": {"fill_fn": self.fill, "batch_config": self.config},
            "fill bytes": {"fill_fn": self.fill_bytes},
        }[kind]

    def sample(self, product_id: str, sequence: int) -> dict[str, Any]:
        return self._placed(sample(self.config, sequence, wide=self._wide))

    def encoded(self, product_id: str, sequence: int) -> bytes:
        return self.config.encode(**sample(self.config, sequence))

    def batch(self, product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Any]:
        return self._placed(batch(self.config, list(sequences), wide=self._wide))

    def batch_of_bytes(self, product_id: str, n: int, sequences: tuple[int, ...]) -> list[bytes]:
        return [self.encoded(product_id, sequence) for sequence in sequences]

    def fill(self, product_id: str, out: dict[str, torch.Tensor], sequence: int) -> None:
        for name, tensor in sample(self.config, sequence).items():
            out[name].copy_(tensor)

    def fill_bytes(self, product_id: str, out: torch.Tensor, sequence: int) -> None:
        data = bytearray(self.encoded(product_id, sequence))
        out.copy_(torch.frombuffer(data, dtype=torch.uint8))

    def _placed(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        if self._where == "host":
            return tensors
        if self._where == "array":
            return {name: t.numpy() if t.dtype not in _ONLY_TORCH else t for name, t in tensors.items()}
        if self._where == "mixed":
            return {name: to_device(t) if i % 2 else t for i, (name, t) in enumerate(tensors.items())}
        return {name: to_device(t, self._device) for name, t in tensors.items()}


_ONLY_TORCH = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def arm(point: str, n_before: int) -> None:
    """Die at a point of the order after so many others."""
    write, put = RemoteArena.write, DeviceOutput.put
    calls = iter(range(1 << 30))

    def deadly_write(self: RemoteArena, *arguments: Any) -> Any:
        now = next(calls) == n_before
        if now and point == "ticket read":
            die()
        place = write(self, *arguments)
        if now and point == "submitted":
            die()
        return place

    def deadly_put(self: DeviceOutput, *arguments: Any) -> None:
        # Those before were published when their functions returned; their work has not even begun.
        if next(calls) == n_before:
            die()
        put(self, *arguments)

    if point == "published":
        DeviceOutput.put = deadly_put  # type: ignore[method-assign]
    else:
        RemoteArena.write = deadly_write  # type: ignore[method-assign]


def run(options: dict[str, Any]) -> None:
    """Serve what the options name until the input ends."""
    log = logging.getLogger("softs_fast")
    log.addHandler(_Records())
    log.propagate = False
    if options["point"]:
        arm(options["point"], options["n_before"])
    medium = {"cuda": CudaIpcMedium, "shm": ShmMedium}[options["medium"]]
    with contextlib.ExitStack() as suppliers:
        for one in options["serves"]:
            maker = Maker(one["config"], one["where"], one["device"], one["wide"])
            supplier = Supplier(
                product_ids=[one["product"]],
                endpoint=options["backend"],
                medium_cls=medium,
                slot_size=maker.config.nbytes(),
                **maker.arguments(one["kind"]),
            )
            suppliers.enter_context(supplier)
        say(event="ready")
        sys.stdin.read()
