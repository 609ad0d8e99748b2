"""Moves packets between two TUN devices, one in each of two network namespaces: a process that `networks.Line` starts.

``python emulator_process.py OPTIONS``, where OPTIONS is JSON: ``{"pids", "device", "shape"}``. The devices exist as long as
this process does. Each line on standard input is a command, ``[name, ways]``, answered by a line with the counts of both
ways once it has taken effect. It ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import struct
import sys
import time

from emulator import Emulator, Shape

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LARGEST_PACKET = 65536
# The first byte of an address of IPv6 to which a packet goes.
_TARGET, _MULTICAST = 24, 0xFF
#: Packets that are taken from one device before the other one, and arrivals, are looked at.
_BUNCH = 32


def open_tun(pid: int, device: str) -> int:
    """Make a TUN device in the network namespace of a process; returns its descriptor, with which it ends.

    Raises:
        OSError: the machine has no TUN devices, or the kernel refuses.
    """
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the network of a host")
    finally:
        os.close(namespace)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def take(tun: int, emulator: Emulator, way: int) -> None:
    """Put what a host sends on the line."""
    for _ in range(_BUNCH):
        try:
            packet = os.read(tun, _LARGEST_PACKET)
        except BlockingIOError:
            return
        # What the kernel sends by itself is no packet of a test: all of it is multicast of IPv6.
        if packet[0] >> 4 == 4 or packet[_TARGET] != _MULTICAST:
            emulator.send(way, time.monotonic(), packet)


def run(tuns: tuple[int, int], emulator: Emulator) -> None:
    """Move packets and obey commands until there are none more."""
    while True:
        at = emulator.next_at()
        timeout = None if at is None else max(at - time.monotonic(), 0.0)
        readable, _, _ = select.select([0, *tuns], [], [], timeout)
        if 0 in readable:
            command = os.read(0, _LARGEST_PACKET)
            if not command:
                return
            emulator.command(time.monotonic(), *json.loads(command))
            counts = [
                {name: value for name, value in vars(way).items() if not name.startswith("_")}
                for way in emulator.ways
            ]
            print(json.dumps(counts), flush=True)
        for way, tun in enumerate(tuns):
            if tun in readable:
                take(tun, emulator, way)
        for way, tun in zip(emulator.ways, reversed(tuns), strict=True):
            for packet in way.arrivals(time.monotonic()):
                os.write(tun, packet)


def main() -> None:
    options = json.loads(sys.argv[1])
    first, second = (open_tun(pid, options["device"]) for pid in options["pids"])
    print("ready", flush=True)
    run((first, second), Emulator(Shape(**options["shape"])))


if __name__ == "__main__":
    main()
