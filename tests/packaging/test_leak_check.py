"""The watch on what tests leave behind knows the descriptors of NVIDIA's driver, from made-up lists of them."""

from __future__ import annotations

import pytest
from descriptors import of_driver

#: What a driver has open after its first use.
FIRST_USE = {
    "descriptor 7 -> /dev/nvidiactl",
    "descriptor 8 -> /dev/nvidia-uvm",
    "descriptor 9 -> /dev/nvidia0",
    "descriptor 10 -> /dev/nvidia0",
    "descriptor 12 -> anon_inode:[eventfd]",
    "descriptor 13 -> pipe:[4711]",
    "descriptor 14 -> pipe:[4711]",
}
#: What a test itself may leave, whatever the driver does.
LEAKS = {
    "descriptor 20 -> socket:[4712]",
    "descriptor 21 -> /dev/shm/sl_abc",
    "descriptor 22 -> /tmp/nvidia0",
    "segment sl_abc",
    "child 4713",
    "thread pipe: to /dev/nvidia0",
}
LATER = {"descriptor 30 -> pipe:[4714]", "descriptor 31 -> anon_inode:[eventfd]"}


@pytest.mark.parametrize("before", [set(), {"descriptor 3 -> pipe:[1]"}])
def test_what_the_driver_opens_at_its_first_use_is_no_leak(before: set[str]) -> None:
    assert of_driver(before, FIRST_USE | LEAKS) == FIRST_USE


def test_files_of_the_driver_never_are() -> None:
    more = {"descriptor 40 -> /dev/nvidia0", "descriptor 41 -> /dev/nvidiactl"}
    assert of_driver(FIRST_USE, more | LEAKS | LATER) == more


def test_the_first_use_of_another_device_is_one() -> None:
    second = {"descriptor 40 -> /dev/nvidia1", "descriptor 41 -> anon_inode:[eventfd]"}
    assert of_driver(FIRST_USE, second | LEAKS) == second


@pytest.mark.parametrize("before", [set(), FIRST_USE])
def test_pipes_without_a_first_use_are_leaks(before: set[str]) -> None:
    assert of_driver(before, LEAKS | LATER) == set()
