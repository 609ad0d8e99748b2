"""Which devices, driver, runtime and torch this machine has, and why they cannot be used together."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import _core, _kernels

__all__ = ["Machine", "look", "problems"]

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
#: Numbers of CUdevice_attribute, by the name under which they are reported.
_ATTRIBUTES = {
    "compute_mode": 20,
    "multiprocessors": 16,
    "capability_major": 75,
    "capability_minor": 76,
    "host_pointer_of_registered_memory": 91,
    "host_register": 99,
    "stream_memory_operations_64_bit": 122,
    "ipc_events": 125,
}

#: Loads a library by its name; raises OSError.
Load = Callable[[str], Any]


@dataclass
class Machine:
    """What was found; what was not found is None.

    Attributes:
        driver_error: Reason why the driver's library cannot be loaded.
        driver: Highest version of CUDA that the driver supports; 13000 is 13.0.
        init_error: Number and name of the error with which the driver refuses to begin.
        devices: Name, bytes of memory and attributes of each.
        runtime: Version of CUDA in `softs_fast._kernels`, and the target architectures.
        torch: Version of torch.
        torch_error: Reason why torch cannot be imported.
        torch_cuda: Version of CUDA in torch, as text.
        torch_devices: How many devices torch sees.
        other: Versions, kernel, memory of /dev/shm, environment variables.
    """

    driver_error: str | None = None
    driver: int | None = None
    init_error: tuple[int, str] | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    runtime: tuple[int, str] | None = None
    torch: str | None = None
    torch_error: str | None = None
    torch_cuda: str | None = None
    torch_devices: int = 0
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def is_standin(self) -> bool:
        """Whether CUDA is the stand-in of the tests."""
        return self.runtime is not None and self.runtime[1] == "stand-in"


def look(quick: bool = False, *, load: Load = ctypes.CDLL) -> dict[str, Any]:
    """Find everything, and return it with what is wrong: the attributes of Machine, and `problems`.

    Args:
        quick: ignored.
        load: loads a library.
    """
    found = Machine(runtime=_kernels.cuda_build(), other=_other())
    if found.is_standin:
        n_devices = max(0, _kernels.cuda_devices())
        found.driver = found.runtime and found.runtime[0]
        found.devices = [{"name": _kernels.cuda_device_name(i)} for i in range(n_devices)]
    else:
        _ask_driver(found, load)
    _ask_torch(found)
    return {**asdict(found), "problems": problems(found)}


def problems(found: Machine) -> list[str]:
    """Return why the devices cannot be used, each cause with its remedy; the most basic one first. Pure."""
    told = list(_of_driver(found))
    if found.runtime is None:
        told.append(
            "this build has no CUDA: softs_fast._kernels was compiled without it; install a wheel of softs-fast, or "
            "build it with nvcc on PATH or SOFTS_CUDA=pip"
        )
    elif found.driver and found.driver // 1000 < found.runtime[0] // 1000:
        told.append(_too_old(found.driver, f"softs-fast was built for {_text(found.runtime[0])}"))
    if found.torch is None:
        told.append(
            f"torch missing: it cannot be imported ({found.torch_error}); pip install 'softs-fast[torch]'"
        )
    elif found.is_standin:
        pass
    elif found.torch_cuda is None:
        told.append(
            f"this torch has no CUDA: it is {found.torch}; install a build of torch for CUDA, see "
            "https://pytorch.org/get-started/locally"
        )
    elif found.driver and found.driver // 1000 < int(found.torch_cuda.partition(".")[0]):
        told.append(_too_old(found.driver, f"torch {found.torch} was built for {found.torch_cuda}"))
    elif not told and found.torch_devices == 0:
        told.append(
            f"torch sees no device, although the driver reports {len(found.devices)}; look at the output of "
            "python -c 'import torch; torch.cuda.init()'"
        )
    return told


def _of_driver(found: Machine) -> Sequence[str]:
    if found.driver_error is not None:
        return [
            f"no driver: {_LIBRARY} cannot be loaded ({found.driver_error}); install NVIDIA's driver, or start the "
            "container with its devices (docker run --gpus all)"
        ]
    visible = found.other.get("CUDA_VISIBLE_DEVICES")
    hidden = f"; CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else ""
    if found.init_error is not None and found.init_error[0] != _NO_DEVICE:
        number, name = found.init_error
        return [
            f"the driver does not work: cuInit failed with {name} ({number}){hidden}; see nvidia-smi and dmesg, and "
            "restart the machine if the driver was just updated"
        ]
    if not found.devices:
        return [
            f"no device: the driver, for CUDA {_text(found.driver)}, reports none{hidden}; see nvidia-smi, and whether "
            "the container has /dev/nvidia0"
        ]
    return []


def _too_old(driver: int, need: str) -> str:
    return (
        f"driver too old for this runtime: it supports CUDA {_text(driver)}, and {need}; install a newer driver, or a "
        f"build for CUDA {driver // 1000}"
    )


def _text(version: int | None) -> str:
    return "?" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _ask_driver(found: Machine, load: Load) -> None:
    try:
        driver = load(_LIBRARY)
    except OSError as missing:
        found.driver_error = str(missing)
        return
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.pointer(number)) == 0:
        found.driver = number.value
    error = driver.cuInit(0)
    if error:
        found.init_error = error, _name_of(driver, error)
        return
    if driver.cuDeviceGetCount(ctypes.pointer(number)) == 0:
        found.devices = [_device(driver, index) for index in range(number.value)]


def _name_of(driver: Any, error: int) -> str:
    name = ctypes.c_char_p()
    known = driver.cuGetErrorName(error, ctypes.pointer(name)) == 0 and name.value
    return name.value.decode() if known and name.value else "an unknown error"


def _device(driver: Any, index: int) -> dict[str, Any]:
    device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.pointer(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.pointer(size), device)
    attributes = {}
    for attribute, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        known = driver.cuDeviceGetAttribute(ctypes.pointer(value), number, device) == 0
        attributes[attribute] = value.value if known else None
    return {"name": name.value.decode(errors="replace"), "bytes": size.value, **attributes}


def _ask_torch(found: Machine) -> None:
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        found.torch_error = str(error)
        return
    found.torch, found.torch_cuda = str(torch.__version__), torch.version.cuda
    if found.torch_cuda is not None and found.devices:
        found.torch_devices = torch.cuda.device_count()


def _other() -> dict[str, Any]:
    driver = Path("/proc/driver/nvidia/version")
    return {
        "softs_fast": _core.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "shm_bytes": shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        "kernel_module": driver.read_text().splitlines()[0] if driver.exists() else None,
        "build_info": _kernels.build_info(),
        **{
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("CUDA_", "NVIDIA_", "PYTORCH_"))
        },
    }
