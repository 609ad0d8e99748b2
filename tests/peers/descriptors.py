"""Which open descriptors belong to NVIDIA's driver, which keeps them until the process ends. Pure: texts only."""

from __future__ import annotations

#: Files that no other than the driver opens.
OF_DRIVER = ("/dev/nvidia", "/proc/driver/nvidia", "/dev/shm/cuda.shm")
#: What it opens besides when a process first uses it, or another device.
BESIDES = ("pipe:", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")


def target_of(descriptor: str) -> str:
    """What "descriptor NUMBER -> TARGET" refers to; empty for other texts."""
    kind, _, rest = descriptor.partition(" ")
    return rest.partition(" -> ")[2] if kind == "descriptor" else ""


def of_driver(before: set[str], left: set[str]) -> set[str]:
    """Those of the descriptors `left` that the driver keeps.

    Files of the driver always are. A pipe or an eventfd is only if a device was used for the first time since `before`:
    from then on one that is left is a leak.
    """
    files = {item for item in left if target_of(item).startswith(OF_DRIVER)}
    known = {target_of(item) for item in before}
    if all(target_of(item) in known for item in files):
        return files
    return files | {item for item in left if target_of(item).startswith(BESIDES)}
