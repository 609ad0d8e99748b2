"""What packets meet between two hosts: delay, loss, a rate with a queue, and faults. Pure: times are given, packets are bytes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_TCP = 6
_SYN, _ACK = 0x02, 0x10


@dataclass(frozen=True)
class Shape:
    """What both ways of a line do to packets.

    Attributes:
        delay_s: Seconds from the last bit on the line to the arrival.
        loss: Probability with which a packet is lost, from 0 to 1.
        bits_per_s: Rate of each way; None: no limit.
        queue_bytes: A packet is dropped if it finds so many bytes that are not on the line yet.
        seed: Number from which the losses follow.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    bits_per_s: float | None = None
    queue_bytes: int = 1 << 20
    seed: int = 0


class OneWay:
    """One direction of a line.

    Attributes:
        sent: Packets that were given to it.
        lost: Packets among them that were lost, by chance or by a cut.
        dropped: Packets among them that found the queue full.
        arrived: Packets among them that have arrived; the others are on their way.
    """

    def __init__(self, shape: Shape, seed: str) -> None:
        self.sent = self.lost = self.dropped = self.arrived = 0
        self._shape = shape
        self._random = random.Random(seed)
        # By the clock of the line, which stands still while it is frozen.
        self._on_their_way: deque[tuple[float, bytes]] = deque()
        self._idle_from = 0.0
        self._is_cut = False
        self._frozen_at: float | None = None
        self._stood_still_s = 0.0

    def send(self, now: float, packet: bytes) -> None:
        """Put a packet on the line."""
        self.sent += 1
        if self._random.random() < self._shape.loss or self._is_cut:
            self.lost += 1
            return
        own = self._own(now)
        begins = max(own, self._idle_from)
        if rate := self._shape.bits_per_s:
            if (begins - own) * rate >= 8 * self._shape.queue_bytes:
                self.dropped += 1
                return
            begins += 8 * len(packet) / rate
            self._idle_from = begins
        self._on_their_way.append((begins + self._shape.delay_s, packet))

    def arrivals(self, now: float) -> Iterator[bytes]:
        """Yield the packets that have arrived, in order; none while the line is frozen."""
        own = self._own(now)
        while self._frozen_at is None and self._on_their_way and self._on_their_way[0][0] <= own:
            self.arrived += 1
            yield self._on_their_way.popleft()[1]

    def next_at(self) -> float | None:
        """Return when the next packet arrives; None: there is none, or the line is frozen."""
        if self._frozen_at is not None or not self._on_their_way:
            return None
        return self._on_their_way[0][0] + self._stood_still_s

    def cut(self) -> None:
        """Lose what is on its way, and all that is sent until `heal`."""
        self._is_cut = True
        self.lost += len(self._on_their_way)
        self._on_their_way.clear()
        self._idle_from = 0.0

    def freeze(self, now: float) -> None:
        """Keep all that is on its way, and is sent, until `heal`."""
        if self._frozen_at is None:
            self._frozen_at = now

    def heal(self, now: float) -> None:
        """End a cut and a freeze."""
        self._is_cut = False
        if self._frozen_at is not None:
            self._stood_still_s += now - self._frozen_at
            self._frozen_at = None

    def _own(self, now: float) -> float:
        return (now if self._frozen_at is None else self._frozen_at) - self._stood_still_s


class Emulator:
    """A line of two ways: way 0 is what the first host sends, way 1 what the second one sends."""

    def __init__(self, shape: Shape) -> None:
        self.ways = (OneWay(shape, f"{shape.seed} 0"), OneWay(shape, f"{shape.seed} 1"))
        # Those that began after `drop_connections`; None: all pass.
        self._known: set[frozenset[bytes]] | None = None

    def send(self, way: int, now: float, packet: bytes) -> None:
        """Put a packet on the line."""
        if self._known is None or self._passes(packet):
            self.ways[way].send(now, packet)
        else:
            self.ways[way].sent += 1
            self.ways[way].lost += 1

    def next_at(self) -> float | None:
        """Return when the next packet arrives at either end."""
        return min((at for way in self.ways if (at := way.next_at()) is not None), default=None)

    def command(self, now: float, name: str, ways: list[int]) -> None:
        """Obey a command: "cut", "freeze" or "heal" for some ways, or "drop_connections" for both."""
        if name == "drop_connections":
            self._known = set()
        for way in (self.ways[number] for number in ways):
            if name == "cut":
                way.cut()
            elif name == "freeze":
                way.freeze(now)
            elif name == "heal":
                way.heal(now)

    def _passes(self, packet: bytes) -> bool:
        assert self._known is not None
        found = connection_of(packet)
        if found is None:
            return True
        connection, begins = found
        if begins:
            self._known.add(connection)
        return connection in self._known


def connection_of(packet: bytes) -> tuple[frozenset[bytes], bool] | None:
    """Return the TCP connection of a packet, the same both ways, and whether it begins with it; None for other packets.

    Packets of IPv6 with extension headers count as others.
    """
    if packet[0] >> 4 == 4:
        protocol, begin = packet[9], 4 * (packet[0] & 15)
        source, target = packet[12:16], packet[16:20]
    else:
        protocol, begin = packet[6], 40
        source, target = packet[8:24], packet[24:40]
    if protocol != _TCP:
        return None
    source += packet[begin : begin + 2]
    target += packet[begin + 2 : begin + 4]
    return frozenset((source, target)), packet[begin + 13] & (_SYN | _ACK) == _SYN
