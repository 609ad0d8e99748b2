"""Agreement of the ranks that are left after a loss on which ones they are, through a store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from softs_fast.collectives.rendezvous import KeyValueStore
from softs_fast.collectives.world import Decision, World, count_of, decide
from softs_fast.errors import PeerLost
from softs_fast.identity import Process, this_process
from softs_fast.process import check_process

_POLL_INTERVAL_S = 0.002


@dataclass
class Member:
    """A rank of a world, and what it must know to go on after a loss.

    Attributes:
        world: the ranks.
        number: the first number of this one.
        processes: number and start of the processes of this node, by first number.
        completed: calls that this rank has completed since the last decision.
        difference: set if ranks of this world differ in what they have completed before; says how.
    """

    world: World
    number: int
    processes: Mapping[int, tuple[int, int]]
    completed: int = 0
    difference: str = ""
    _notes: list[str] = field(default_factory=list)
    _pid: int = field(default_factory=os.getpid)

    def meet(self, store: KeyValueStore, timeout_s: float) -> None:
        """Agree with the other ranks that are left on which ones they are: the same on each rank, at any time.

        This waits until each other rank has come or its process has ended; of a rank on another node it knows the
        latter from a rank there. After `timeout_s` the ranks that are there go on alone. The first decision counts. It
        stays in the store, so that a rank that comes later finds it.

        Args:
            store: Store of all ranks.
            timeout_s: Seconds to wait for ranks that live.

        Raises:
            PeerLost: the ranks have decided without this one, or the store has failed.
        """
        decision = self._decided(store, time.monotonic() + timeout_s)
        if self.number not in decision.remaining:
            raise PeerLost(
                f"the others rebuilt the group without rank {self.world.members.index(self.number)}, which came too late; "
                "start a new group"
            )
        if decision.least != decision.most:
            self.difference = (
                f"some ranks have completed a call that failed on others: {decision.most} calls and {decision.least}, on "
                f"this rank {self.completed}"
            )
        self.world = self.world.of(decision.remaining)
        self.completed = 0

    def remove_notes(self, store: KeyValueStore) -> None:
        """Remove what this rank has told the others; call it once all are known to have read the decision.

        Not before: a store of torch waits for a key that is removed between the question for it and its reading.
        """
        while self._notes:
            store.delete(self._notes.pop())

    def check_process(self) -> None:
        """Raise ForkedError in a fork of the process that made this."""
        check_process(self._pid, "this group")

    def _decided(self, store: KeyValueStore, deadline: float) -> Decision:
        world, key = self.world, self.world.key
        store.set(f"{key}.here.{self.number}", b"%d" % self.completed)
        here: dict[int, int] = {}
        told: set[int] = set()
        while (said := store.decided(f"{key}.decision")) is None:
            for member in self._ended() - told:
                store.set(f"{key}.ended.{member}", b"1")
                told.add(member)
            for member in set(world.members) - set(here):
                count = count_of(store.get(f"{key}.here.{member}"))
                if count is not None:
                    here[member] = count
            gone = {member for member in world.members if store.get(f"{key}.ended.{member}") is not None}
            decision = decide(world, here, gone, is_late=time.monotonic() > deadline)
            if decision is not None:
                store.decide(f"{key}.decision", decision.encoded(world))
            else:
                time.sleep(_POLL_INTERVAL_S)
        self._notes += [f"{key}.here.{self.number}", *(f"{key}.ended.{member}" for member in told)]
        return Decision.parsed(said, world)

    def _ended(self) -> set[int]:
        namespace = this_process().namespace
        return {
            member
            for member, (pid, started) in self.processes.items()
            if member in self.world.members and not Process(pid, started, namespace).is_alive()
        }
