"""The coordinator of a job: which workers are members, and what names their epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...errors import ConfigError
from . import epochs, following
from .admission import Contested
from .events import (
    Agreed,
    Booted,
    Close,
    Completed,
    Drain,
    End,
    Ended,
    Event,
    Evict,
    Gone,
    Output,
    Persist,
    Received,
    Resize,
    StateRecord,
)
from .messages import (
    Cause,
    CheckpointBegin,
    CheckpointDamaged,
    CheckpointEnd,
    Fault,
    Fence,
    Followed,
    FromWorker,
    Hello,
    Leave,
    Ready,
    Refused,
    Step,
    Table,
    Unfollowed,
    Welcome,
)
from .options import MAX_TEXT, JobOptions
from .seats import Seats, Worker
from .state import Newcomer, State
from .status import Status, status_of


class Job:
    """The machine of a coordinator: FORMING -> OPEN -> FENCED -> OPEN -> ...; ENDED, FAILED.

    Same events, same outputs: it has no clock and no random numbers.

    Args:
        options: Options of the job.
        boot: Random number; together with their own number it names the epochs that this coordinator opens.
        now_s: Present time on the clock of all later calls, seconds.
        records: Records written by the coordinator before this one.

    Raises:
        ConfigError: the records are of another job, or do not fit the options.

    Invariants, which tests/coordination checks in thousands of histories:
        I1: one table per boot and epoch; the numbers of epochs only grow.
        I2: one process per seat.
        I3: no table before each member of the epoch before was ready, or is no member of the new one; and none without
            a member of the epoch before while one of them is connected or its seat is kept, until `rejoin_timeout_s`.
        I4: a message of an earlier epoch, connection or process changes nothing.
        I5: size, unit and blocks hold in every table.
        I6: ranks are 0 to n - 1 in the order of the seats.
        I7: all members resume at one step; no step that a survivor has committed is lost, none is applied twice.
        I8: the same events make the same outputs.
        I9: nothing grows without bound.
        I10: an accusation evicts nothing, nor does standing still, unless the options say so.
        I11: while there is no coordinator, no epoch changes.
        I12: all that are connected have one contract, from the first epoch on that of the job.

    Source: own, see docs/coordination.md.
    """

    def __init__(
        self, options: JobOptions, boot: int, now_s: float, records: Sequence[StateRecord] = ()
    ) -> None:
        self._state = State(options, boot, now_s, now_s, Seats(options.n_seats))
        # Processes that wait for the end of a connection, at most.
        self._most_newcomers = options.n_seats + options.max_spares
        self._wake_s = math.inf
        self._restore(records)
        self._state.adopt([boot])

    def handle(self, now_s: float, event: Event) -> list[Output]:
        """Take an event; return what is to be done, in this order.

        Raises:
            ConfigError: an administrator names a seat that has no worker, or a size that cannot be; nothing has changed.
        """
        state = self._state
        state.now_s = max(state.now_s, now_s)
        state.outputs = []
        if self._is_progress(event):
            return state.outputs
        match event:
            case Received():
                self._receive(event)
            case Gone():
                self._lose(event.conn)
            case Drain():
                self._drain(self._holder(event.seat), event.reason)
            case Evict():
                self._evict(self._holder(event.seat), "evicted", event.reason)
            case Resize():
                self._resize(event)
            case End():
                epochs.finish(state, "ended", event.reason)
        self._admit_newcomers()
        for worker in epochs.advance(state):
            self._evict(worker, "stalled", f"no progress for {state.options.stalled_after_s:g} s")
        self._wake_s = min((at for at in epochs.deadlines(state) if at > state.now_s), default=math.inf)
        return state.outputs

    def next_wake_s(self) -> float | None:
        """Return when `handle` wants a Tick, if nothing happens before."""
        state = self._state
        stalled_s = state.progress.top_since_s + state.options.stalled_after_s
        wake_s = min(
            self._wake_s, stalled_s if stalled_s > state.now_s and state.phase == "open" else math.inf
        )
        return None if wake_s == math.inf else wake_s

    def records(self) -> list[StateRecord]:
        """Return what a coordinator after this one has to know."""
        state = self._state
        found: list[StateRecord] = [Booted(state.options.name, boot) for boot in state.boots]
        is_ended = state.phase == "ended"
        if state.gate.contract is not None and not is_ended:
            found.append(Agreed(state.gate.contract))
        if state.table is not None and not is_ended:
            found.append(state.table)
        return [*found, *state.checkpoints.complete]

    def status(self, now_s: float) -> Status:
        """Return what the job does, and what it waits for."""
        return status_of(self._state, now_s)

    # --- Messages of workers ---

    def _receive(self, event: Received) -> None:
        message = event.message
        worker = self._state.seats.by_conn.get(event.conn)
        if isinstance(message, Hello):
            if worker is None and event.conn not in self._state.newcomers:
                self._admit(event.conn, message, event.identity)
            return
        # I4: of a connection that was closed, or one that has said no Hello.
        if worker is None:
            return
        if isinstance(message, Ready):
            self._ready(worker, message)
        elif isinstance(message, Leave):
            self._leave(worker, message)
        elif isinstance(message, Followed | Unfollowed):
            following.note(self._state, worker, message)
        elif message.epoch == self._state.epoch and self._state.is_member(worker):
            if self._state.phase == "open":
                self._member_says(worker, message)
            elif isinstance(message, Fault) and self._is_own(worker, message):
                # What the first one has raised may follow from this one.
                name = self._state.name_of(worker)
                self._state.log(
                    f"{name} failed, too, in step {message.step}: {message.text}", is_warning=True
                )

    def _member_says(self, worker: Worker, message: FromWorker) -> None:
        state = self._state
        match message:
            case Fault():
                self._fail(worker, message)
            case CheckpointDamaged():
                self._damaged(worker, message)
            case CheckpointBegin():
                refused = state.checkpoints.begin(message.step, message.path[:MAX_TEXT], state.members)
                if refused:
                    state.log(f"{worker.name} cannot begin a checkpoint: {refused}", is_warning=True)
            case CheckpointEnd():
                done = state.checkpoints.end(
                    state.epoch, message.step, message.path[:MAX_TEXT], worker.number
                )
                if done is not None:
                    state.outputs.append(Persist(done))
                    state.log(f"checkpoint of step {done.step} is complete: {done.path}")

    def _is_progress(self, event: Event) -> bool:
        """Note a step that a member has begun; nothing else comes of it, so it costs the same with any number of them."""
        state = self._state
        if not (isinstance(event, Received) and isinstance(event.message, Step)):
            return False
        worker = state.seats.by_conn.get(event.conn)
        is_of_epoch = state.phase == "open" and event.message.epoch == state.epoch
        if worker is not None and is_of_epoch and state.is_member(worker):
            state.progress.note(state.now_s, worker.number, event.message.number)
            if event.message.report is not None:
                state.rates.note(state.now_s, worker.number, event.message.report)
        return True

    def _admit(self, conn: int, hello: Hello, identity: str | None) -> None:
        state = self._state
        if state.is_over:
            state.refuse(conn, Refused("ended", f"the job has {state.phase}: {state.reason}"))
            return
        verdict = self._state.gate.judge(state.options, state.seats, hello, identity, state.now_s)
        if isinstance(verdict, Contested):
            until_s = state.now_s + state.options.lost_after_s
            newcomer = state.newcomers.pop(conn, None) or Newcomer(hello, identity, until_s)
            is_early = state.now_s < newcomer.until_s or not verdict.is_connected
            if is_early and len(state.newcomers) < self._most_newcomers:
                state.newcomers[conn] = newcomer
                return
            verdict = verdict.refused
        state.newcomers.pop(conn, None)
        if isinstance(verdict, Refused):
            state.log(f'worker "{hello.worker_id[:200]}" is refused: {verdict.text}', is_warning=True)
            state.refuse(conn, verdict)
            return
        worker = verdict.known
        if worker is None:
            before = verdict.replaced or state.seats.by_number.get(
                -1 if verdict.seat is None else verdict.seat
            )
            if before is not None:
                self._replace(before, hello)
            worker = Worker(hello.worker_id, hello.incarnation, hello.address)
            state.seats.add(worker, verdict.seat)
        elif worker.conn is not None:
            state.outputs.append(Close(worker.conn))
            state.seats.disconnect(worker)
        state.seats.connect(worker, conn, hello)
        state.tell(worker, Welcome(state.boot, worker.seat))
        engine = (hello.engine_boot, hello.engine_epoch)
        if hello.engine_epoch and (engine != state.epoch_id or not state.is_member(worker)):
            # This coordinator has lost that epoch, or the job has gone on without this worker.
            text = f"epoch {hello.engine_epoch} is over for this worker; the coordinator is at epoch {state.epoch}"
            state.tell(worker, Fence(*engine, "coordinator", worker.seat, text))
        elif state.is_member(worker):
            if state.phase == "open" and state.table is not None:
                state.tell(worker, state.table)
            if state.fence is not None:
                state.tell(worker, state.fence)
        following.drop_copy_of(state, worker)

    def _admit_newcomers(self) -> None:
        """Admit processes for which a connection has ended; refuse those for which it has lasted."""
        for conn, newcomer in list(self._state.newcomers.items()):
            self._admit(conn, newcomer.hello, newcomer.identity)

    def _replace(self, before: Worker, hello: Hello) -> None:
        """Make room for a later process with the same name or seat."""
        if before.id == hello.worker_id:
            self._state.gate.replaced.append((before.id, before.incarnation))
        self._remove(
            before,
            "restarted",
            f"{self._state.name_of(before)} was started again, as process {hello.incarnation} of {hello.worker_id}",
        )

    def _ready(self, worker: Worker, message: Ready) -> None:
        # I3, I4: else it has not heard of its newest epoch yet, and may still take part in it.
        if worker.told is not None and worker.told != (message.boot, message.epoch):
            return
        worker.ready, worker.ready_since_s = message.state, self._state.now_s
        if self._state.fence is None and self._state.is_member(worker):
            epochs.end(
                self._state, "dropped", worker.seat, f"{self._state.name_of(worker)} has given up its engine"
            )

    def _leave(self, worker: Worker, leave: Leave) -> None:
        worker.is_leaving = True
        if leave.is_resting and worker.resting_since_s is None:
            worker.resting_since_s = self._state.now_s
        if self._state.is_member(worker):
            epochs.plan_end(
                self._state, "left", worker.seat, f"{worker.name} leaves: {leave.reason[:MAX_TEXT]}"
            )

    def _fail(self, worker: Worker, fault: Fault) -> None:
        state = self._state
        members = [one for one in state.seats if state.is_member(one)]
        ranks = {state.members[one.number].rank: one for one in members}
        # An engine may not know which rank is lost; the connection of that rank has mostly ended by then.
        culprit = ranks.get(-1 if fault.accused_rank is None else fault.accused_rank)
        # One that has not connected yet to a coordinator that was restarted is not lost.
        culprit = culprit or next((one for one in members if one.conn is None and one.told is not None), None)
        text = f"in step {fault.step}: {fault.text[:MAX_TEXT]}"
        if culprit is worker:
            text = f"{state.name_of(worker)} failed {text}"
        else:
            lost = "" if culprit is None else f"{state.name_of(culprit)} is lost: "
            text = f"{lost}a call of {state.name_of(worker)} failed {text}"
        epochs.end(state, "fault", None if culprit is None else culprit.seat, text)

    def _is_own(self, worker: Worker, fault: Fault) -> bool:
        """Return whether a worker has raised by itself, and not because a call of its engine failed."""
        return fault.accused_rank == self._state.members[worker.number].rank

    def _damaged(self, worker: Worker, damaged: CheckpointDamaged) -> None:
        """Have all load an older checkpoint; without one the job fails, because it must not begin anew in silence."""
        state = self._state
        text = f"{worker.name} has found checkpoint {damaged.path[:MAX_TEXT]} of step {damaged.step} damaged"
        if state.table is None or damaged.path[:MAX_TEXT] != state.table.checkpoint:
            return
        if state.checkpoints.drop(damaged.step, damaged.path[:MAX_TEXT]):
            epochs.end(state, "fault", worker.seat, text)
        else:
            epochs.finish(state, "failed", f"{text}, and there is no other one; restore it, and begin again")

    def _lose(self, conn: int) -> None:
        self._state.newcomers.pop(conn, None)
        worker = self._state.seats.by_conn.get(conn)
        if worker is None:
            return
        following.note_lost(self._state, worker)
        self._state.seats.disconnect(worker)
        worker.away_since_s = self._state.now_s
        worker.back_until_s = self._state.now_s + self._state.options.blink_s
        if worker.seat is None:
            self._state.seats.remove(worker)

    # --- Administrators ---

    def _holder(self, seat: int) -> Worker:
        worker = self._state.seats.by_number.get(seat)
        if worker is None:
            raise ConfigError(
                f"no worker has seat {seat}; the job has seats 0 to {self._state.options.n_seats - 1}"
            )
        return worker

    def _drain(self, worker: Worker, reason: str) -> None:
        worker.is_leaving = True
        if self._state.is_member(worker):
            epochs.plan_end(self._state, "drained", worker.seat, f"{worker.name} is drained: {reason}")

    def _evict(self, worker: Worker, cause: Cause, reason: str) -> None:
        self._state.gate.evicted.append((worker.id, worker.incarnation))
        text = f"{self._state.name_of(worker)} is evicted: {reason}"
        if worker.conn is not None:
            self._state.refuse(worker.conn, Refused("evicted", text))
        self._remove(worker, cause, text)

    def _remove(self, worker: Worker, cause: Cause, text: str) -> None:
        was_member = self._state.is_member(worker)
        self._state.seats.remove(worker)
        if was_member:
            epochs.end(self._state, cause, worker.seat, text)

    def _resize(self, event: Resize) -> None:
        state = self._state
        state.options = replace(state.options, min_workers=event.min_workers, max_workers=event.max_workers)
        if state.phase == "open" and state.options.largest(len(state.members)) != len(state.members):
            text = f"the job has {event.min_workers} to {event.max_workers} members from now on"
            epochs.plan_end(state, "resized", None, text)

    # --- Records ---

    def _restore(self, records: Sequence[StateRecord]) -> None:
        state = self._state
        table = None
        for record in records:
            match record:
                case Booted(job, boot):
                    state.adopt([boot])
                    if job != state.options.name:
                        raise ConfigError(f'the state is of job "{job}", not of "{state.options.name}"')
                case Table():
                    table = record
                    state.adopt([table.boot])
                case Agreed(contract):
                    state.gate.contract = contract
                case Ended():
                    table = state.gate.contract = None
                case Completed():
                    state.checkpoints.complete.append(record)
        if table is None:
            return
        highest = max(member.seat for member in table.members)
        if highest >= state.options.n_seats:
            raise ConfigError(
                f"the state has a worker on seat {highest}, the job {state.options.n_seats} seats; begin with the sizes "
                "that it had, and change them later"
            )
        state.enter(table)
        for member in table.members:
            worker = Worker(member.worker_id, member.incarnation, member.address)
            worker.away_since_s = state.now_s
            worker.back_until_s = state.now_s + state.options.reconnect_timeout_s
            state.seats.add(worker, member.seat)
