"""Why devices cannot be used is told with its remedy, from what a driver answers."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import pytest

from softs_fast.gpu import machine
from softs_fast.gpu.machine import Machine, look, problems

FIT = Machine(
    driver=13000,
    devices=[{"name": "NVIDIA H200"}],
    runtime=(13000, "80-real 90"),
    torch="2.11.0+cu130",
    torch_cuda="13.0",
    torch_devices=1,
)


def put(reference: Any, value: int) -> int:
    """Write to what a pointer refers to."""
    reference.contents.value = value
    return 0


class Driver:
    """A libcuda.so.1 with two devices."""

    def __init__(self, version: int = 13000, init: int = 0) -> None:
        self.version, self.init = version, init

    def cuDriverGetVersion(self, number: Any) -> int:
        return put(number, self.version)

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuGetErrorName(self, error: int, name: Any) -> int:
        if error != 100:
            return 1
        name.contents.value = b"CUDA_ERROR_NO_DEVICE"
        return 0

    def cuDeviceGetCount(self, number: Any) -> int:
        return put(number, 2)

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return put(device, 10 + index)

    def cuDeviceGetName(self, name: Any, n_bytes: int, device: Any) -> int:
        name.value = f"device {device.value}".encode()
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        return put(size, 80 << 30)

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        return put(value, 9) if number == 75 else 1


def found(driver: Driver) -> Machine:
    """What is found with this driver, without torch."""
    result = Machine()
    machine._ask_driver(result, lambda name: {"libcuda.so.1": driver}[name])
    return result


def test_a_fit_machine_has_no_problems() -> None:
    assert problems(FIT) == []
    assert problems(dataclasses.replace(FIT, driver=13020)) == []
    # Within one major version a driver runs what was built for a later minor one.
    assert problems(dataclasses.replace(FIT, torch_cuda="13.2")) == []


@pytest.mark.parametrize(
    ("difference", "texts"),
    [
        (
            {
                "driver_error": "cannot open shared object file",
                "driver": None,
                "devices": [],
                "torch_devices": 0,
            },
            [
                "no driver: libcuda.so.1 cannot be loaded (cannot open shared object file); install NVIDIA's driver"
            ],
        ),
        (
            {"driver": 12040},
            [
                "driver too old for this runtime: it supports CUDA 12.4, and softs-fast was built for 13.0; install",
                "torch missing: it cannot be imported",
            ],
        ),
        (
            {"driver": 12040, "runtime": (12080, "90"), "torch": "2.11.0", "torch_cuda": "13.0"},
            ["driver too old for this runtime: it supports CUDA 12.4, and torch 2.11.0 was built for 13.0"],
        ),
        ({"devices": []}, ["no device: the driver, for CUDA 13.0, reports none; see nvidia-smi"]),
        (
            {
                "init_error": (100, "CUDA_ERROR_NO_DEVICE"),
                "devices": [],
                "other": {"CUDA_VISIBLE_DEVICES": ""},
            },
            [
                "no device: the driver, for CUDA 13.0, reports none; CUDA_VISIBLE_DEVICES is ''; see nvidia-smi"
            ],
        ),
        (
            {"init_error": (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "devices": []},
            ["the driver does not work: cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803); see"],
        ),
        ({"runtime": None}, ["this build has no CUDA: softs_fast._kernels was compiled without it; install"]),
        (
            {"torch": None, "torch_error": "No module named 'torch'"},
            [
                "torch missing: it cannot be imported (No module named 'torch'); pip install 'softs-fast[torch]'"
            ],
        ),
        ({"torch": "2.11.0+cpu", "torch_cuda": None}, ["this torch has no CUDA: it is 2.11.0+cpu; install"]),
        ({"torch_devices": 0}, ["torch sees no device, although the driver reports 1; look at"]),
    ],
)
def test_each_cause_has_a_text_with_its_remedy(difference: dict[str, Any], texts: list[str]) -> None:
    if difference == {"driver": 12040}:
        difference = difference | {"torch": None}
    told = problems(dataclasses.replace(FIT, **difference))
    assert len(told) == len(texts)
    for text, begin in zip(told, texts, strict=True):
        assert text.startswith(begin)


def test_all_causes_are_told_the_most_basic_first() -> None:
    told = problems(Machine(driver_error="none", torch_error="none"))
    assert [text.partition(":")[0] for text in told] == [
        "no driver",
        "this build has no CUDA",
        "torch missing",
    ]


def test_a_driver_is_asked_for_its_devices() -> None:
    result = found(Driver())
    assert (result.driver, result.init_error, result.driver_error) == (13000, None, None)
    assert [device["name"] for device in result.devices] == ["device 10", "device 11"]
    first = result.devices[0]
    assert (first["bytes"], first["capability_major"], first["capability_minor"]) == (80 << 30, 9, None)


@pytest.mark.parametrize(("error", "name"), [(100, "CUDA_ERROR_NO_DEVICE"), (999, "an unknown error")])
def test_a_driver_that_refuses_is_not_asked_further(error: int, name: str) -> None:
    result = found(Driver(version=12040, init=error))
    assert (result.driver, result.init_error, result.devices) == (12040, (error, name), [])


def test_a_library_that_cannot_be_loaded_is_no_driver() -> None:
    def load(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: no such file")

    told = look(load=load)
    assert told["driver_error"] == "libcuda.so.1: no such file"
    assert told["problems"][0].startswith(
        "no driver: libcuda.so.1 cannot be loaded (libcuda.so.1: no such file)"
    )
    assert told["torch"], "the tests have torch"
    assert told["other"]["build_info"]["compiled"]
