"""What must hold in a simulated job, at each moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softs_fast.coordination.job.events import Booted
from softs_fast.coordination.job.messages import Member, Table, WorkerState

if TYPE_CHECKING:
    from simulated_job import World

#: Of the epochs of an earlier training.
EARLIER_BOOT = 99


class Invariants:
    """Checks tables and weights by what has become of the epochs before."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: Steps that were committed, one for each member.
        self.n_steps = 0
        self._weights: dict[tuple[int, int, int], Any] = {}
        self._tables: dict[tuple[int, int], Table] = {}
        self._committed: dict[tuple[int, int], int] = {}

    def check_weights(self, table: Table, step: int, weights: Any) -> None:
        """I7: all members that have applied a step have the same weights."""
        assert self._weights.setdefault((table.boot, table.epoch, step), weights) == weights

    def note_committed(self, table: Table, step: int) -> None:
        self.n_steps += 1
        epoch = (table.boot, table.epoch)
        self._committed[epoch] = max(self._committed.get(epoch, 0), step)

    def state_of(self, member: Member) -> WorkerState:
        """Return what a process has, or had when it died."""
        return self.world.started[member.worker_id, member.incarnation].machine.state

    def has_state_of(self, table: Table, member: Member) -> bool:
        """Return whether a process has the state of an epoch.

        As long as none of its steps was committed, so has a member of an earlier epoch with the step at which it began.
        """
        state = self.state_of(member)
        is_unused = (table.boot, table.epoch) not in self._committed
        has_its_step = state.epoch > 0 and state.boot != EARLIER_BOOT and state.reach >= table.resume_step
        return (state.boot, state.epoch) == (table.boot, table.epoch) or (is_unused and has_its_step)

    def is_present(self, member: Member) -> bool:
        """Return whether a process is there, and can be a member of the next epoch."""
        process = self.world.started[member.worker_id, member.incarnation]
        if not process.is_alive or process.is_over or process.machine.is_resting or process.link is None:
            return False
        assert self.world.job is not None
        known = self.world.job._state.seats.by_conn.get(process.link.conn)
        return (
            not process.link.is_cut and known is not None and not known.is_leaving and known.seat is not None
        )

    def is_known(self, table: Table | None) -> bool:
        """Return whether the present coordinator has opened an epoch, or has read of it."""
        known = [*self.world.began[2], *self.world.opened]
        return table in known

    def is_misleading(self, member: Member) -> bool:
        """Return whether a coordinator that has lost an epoch must take a state for a later one.

        It is of an earlier training, or of the last epoch that an older copy of the file has.
        """
        boot = self.state_of(member).boot
        records = self.world.began[2]
        own = {one.boot for one in records if isinstance(one, Table)}
        return boot == EARLIER_BOOT or boot in own | {one.boot for one in records if isinstance(one, Booted)}

    def check_survivors(self, table: Table, before: Table) -> None:
        """I3: while a member of the epoch before is connected, there is none in the next one only if none is needed.

        One that has just died counts: the coordinator does not know of it yet.
        """
        if self.is_known(before) and not any(self.has_state_of(before, one) for one in table.members):
            others = [
                one for one in before.members if self.has_state_of(before, one) and self.is_present(one)
            ]
            assert others == [], "I3: an epoch without a survivor, and survivors are connected"

    def check_table(self, table: Table) -> None:
        options, seats = self.world.options, [member.seat for member in table.members]
        assert (table.boot, table.epoch) not in self._tables, "I1"
        before = list(self._tables.values())[-1] if self._tables else None
        if before is not None and before.boot == table.boot:
            assert table.epoch > before.epoch, "I1"
        if before is not None:
            self.check_survivors(table, before)
        self._tables[table.boot, table.epoch] = table
        assert len({member.worker_id for member in table.members}) == len(seats) == len(set(seats)), "I2"
        assert options.largest(len(seats)) == len(seats), "I5"
        for seat in seats:
            first = seat // options.block_size * options.block_size
            assert set(range(first, first + options.block_size)) <= set(seats), "I5"
        assert seats == sorted(seats), "I6"
        assert [member.rank for member in table.members] == list(range(len(seats))), "I6"
        # A job that has taken over another training goes on with the latest epoch of that.
        is_mixed = self.world.job is not None and EARLIER_BOOT in self.world.job._state.boots
        # One with an older copy may know of a checkpoint of a later step than those of the epoch that it has lost.
        is_misled = table.source_rank is None or any(map(self.is_misleading, table.members))
        # Without a file it goes on with what most workers have.
        boots = [self.state_of(member).boot for member in table.members]
        is_misled |= before is not None and any(
            boots.count(boot) >= boots.count(before.boot) for boot in {*boots} - {0, before.boot}
        )
        is_certain = not is_misled or (self.is_known(before) and not is_mixed)
        for member in table.members:
            process = self.world.started[member.worker_id, member.incarnation]
            if not process.is_alive:
                continue
            assert process.machine.phase in ("idle", "away"), "I3"
            assert process.engine is None, "I3"
            state = process.machine.state
            if is_certain and before is not None and (state.boot, state.epoch) == (before.boot, before.epoch):
                committed = self._committed.get((before.boot, before.epoch), 0)
                assert table.resume_step >= max(committed, state.committed), "I7: a committed step is lost"
                assert table.resume_step <= state.reach, "I7"
                assert member.rank in table.survivors
