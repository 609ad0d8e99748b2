"""A small model of a job: all that may happen in it, one event after the other, with the machines of the package.

The coordinator and each rank are the machines themselves, and so are ledger, feed and position. Modelled are connections
(in order; what the coordinator says arrives some time later), the engine (a call ends at each member for itself, or fails
there if one is lost), the market (a stream hands out the numbers of its aim: samples are the same from any supplier) and
the program, which takes micro-batches, reduces, passes the barrier and applies.

An event is a tuple. `World.events` names those that may come next, `World.do` lets one happen. Worlds are pickled, so that a
search may go back to each of them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any

from softs_fast.coordination.job import events
from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.messages import Fence, Hello, Step, Table, ToWorker, WorkerState
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.job.participant import Action, Build, EndEngine, Participant, Say
from softs_fast.job.feed import Aim, Feed
from softs_fast.job.ledger import Ledger
from softs_fast.job.position import Position

Event = tuple[str, ...]


class Stream:
    """The samples of a client: it hands out the numbers of its aim, one after the other."""

    def __init__(self) -> None:
        self.aim: Aim | None = None
        self.n = 0

    def take(self, n: int) -> tuple[int, ...]:
        assert self.aim is not None
        self.n += n
        return tuple(self.aim.number(place) for place in range(self.n - n, self.n))


class Engine:
    """The collectives of an epoch; a call is complete when all members have brought something."""

    def __init__(self, size: int) -> None:
        self.here = set(range(size))
        self.size = size
        self.calls: dict[int, dict[int, Any]] = {}

    def result(self, call: int) -> list[Any] | None:
        brought = self.calls.get(call, {})
        return [brought[rank] for rank in range(self.size)] if len(brought) == self.size else None


class Rank:
    """A process: machine, feed, position, and what its weights depend on."""

    def __init__(self, name: str, incarnation: int, ledger: Ledger) -> None:
        self.name, self.conn = name, incarnation * 10 + ord(name) - ord("a")
        self.machine = Participant(Hello("job", name, incarnation, last=WorkerState()))
        self.feed, self.stream, self.position = Feed(), Stream(), Position(ledger, 0)
        #: Numbers of each committed step, in the order of the ranks that took them.
        self.weights: tuple[tuple[int, ...], ...] = ()
        self.gradients: tuple[int, ...] = ()
        self.held: tuple[int, ...] = ()
        self.inbox: list[ToWorker] = []
        self.epoch: tuple[int, int] | None = None
        self.rank = self.n_calls = 0
        #: What it does: rests; waits for a call of an engine; takes micro-batches.
        self.doing = "rests"
        self.duty = ""
        self.step = 0


class World:
    """All of a job.

    Args:
        n_ranks: Ranks that begin.
        n_micro_batches: Micro-batches of a step, of one sample each.
        n_steps: Steps to commit.
        n_faults: Ranks that die, or join, at most.
    """

    def __init__(self, n_ranks: int, n_micro_batches: int, n_steps: int, n_faults: int) -> None:
        self.ledger = Ledger("p", n_micro_batches, 1)
        self.n_steps, self.n_faults = n_steps, n_faults
        options = JobOptions("job", 1, 3, form_timeout_s=2.0, join_s=0.5, rejoin_timeout_s=60.0)
        self.now_s = 0.0
        self.job = Job(options, 77, self.now_s, ())
        self.ranks: dict[str, Rank] = {}
        self.engines: dict[tuple[int, int], Engine] = {}
        self.n_started = 0
        #: Connections that have ended, which the coordinator has not noticed.
        self.unnoticed: list[int] = []
        #: Weights after each step, in the first epoch that had it; what is lost with all ranks begins anew.
        self.truth: dict[int, tuple[tuple[int, ...], ...]] = {}
        for name in "abc"[:n_ranks]:
            self._start(name)
        while not self.engines:
            self._wait()

    # --- What may happen ---

    def events(self) -> list[Event]:
        found: list[Event] = []
        for name, rank in self.ranks.items():
            if rank.inbox:
                found.append(("hear", name))
            if rank.doing == "takes":
                found.append(("take", name))
            if rank.doing in ("copies", "reduces", "waits"):
                engine = self._engine(rank)
                if engine.result(rank.n_calls) is not None:
                    found.append(("end", name))
                if len(engine.here) < engine.size:
                    found.append(("fail", name))
        found += [("notice", str(conn)) for conn in self.unnoticed]
        if not found and not self.is_over():
            # Time passes only where nothing else happens.
            found.append(("wait",))
        if self.n_faults:
            found += [("kill", name) for name in self.ranks if len(self.ranks) > 1]
            found += [("join", name) for name in "abc" if name not in self.ranks][:1]
        return found

    def is_over(self) -> bool:
        return all(rank.position.committed >= self.n_steps for rank in self.ranks.values())

    def do(self, event: Event) -> None:
        kind, name = event[0], event[-1]
        match kind:
            case "hear":
                rank = self.ranks[name]
                self._act(rank, rank.machine.receive(rank.inbox.pop(0)))
            case "take":
                self._take(self.ranks[name])
            case "end":
                self._end(self.ranks[name])
            case "fail":
                self._fail(self.ranks[name])
            case "notice":
                self.unnoticed.remove(int(name))
                self._tell(events.Gone(int(name)))
                self._wait()
            case "wait":
                self._wait()
            case "kill":
                self.n_faults -= 1
                rank = self.ranks.pop(name)
                self._leave(rank)
                self.unnoticed.append(rank.conn)
            case "join":
                self.n_faults -= 1
                self._start(name)

    # --- The coordinator ---

    def _wait(self) -> None:
        wake_s = self.job.next_wake_s()
        assert wake_s is not None, "nothing will ever happen"
        self.now_s = max(self.now_s, wake_s)
        self._tell(events.Tick())

    def _tell(self, event: events.Event) -> None:
        by_conn = {rank.conn: rank for rank in self.ranks.values()}
        outputs = self.job.handle(self.now_s, event)
        for output in outputs:
            if isinstance(output, events.Send) and output.conn in by_conn:
                by_conn[output.conn].inbox.append(output.message)
        # When a worker learns of the end of an epoch makes a difference; when it learns of a new one makes none.
        for rank in by_conn.values():
            while rank.inbox and not isinstance(rank.inbox[0], Fence):
                self._act(rank, rank.machine.receive(rank.inbox.pop(0)))

    # --- Ranks ---

    def _start(self, name: str) -> None:
        self.n_started += 1
        rank = self.ranks[name] = Rank(name, self.n_started, self.ledger)
        self._tell(events.Received(rank.conn, rank.machine.connected()))

    def _act(self, rank: Rank, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(message) if not isinstance(message, Step):
                    self._tell(events.Received(rank.conn, message))
                case Build():
                    self._build(rank, action)
                case EndEngine():
                    self._leave(rank)
                    self._settle(rank)
                    self._act(rank, rank.machine.ended())

    def _engine(self, rank: Rank) -> Engine:
        assert rank.epoch is not None
        return self.engines[rank.epoch]

    def _leave(self, rank: Rank) -> None:
        if rank.epoch is not None:
            engine = self._engine(rank)
            engine.here.discard(rank.rank)
            if not engine.here:
                del self.engines[rank.epoch]
        rank.epoch, rank.doing = None, "rests"

    def _build(self, rank: Rank, build: Build) -> None:
        table = build.table
        rank.epoch, rank.rank, rank.duty, rank.n_calls = (table.boot, table.epoch), build.rank, build.duty, 0
        self.engines.setdefault(rank.epoch, Engine(len(table.members)))
        if build.duty == "apply":
            self._apply(rank)
            rank.machine.applied()
        elif rank.feed.phase == "settling":
            rank.feed.dropped()
        rank.held = rank.gradients = ()
        self._call(rank, (rank.weights, rank.position.state_dict()), "copies")

    def _call(self, rank: Rank, value: Any, doing: str) -> None:
        rank.doing = doing
        self._engine(rank).calls.setdefault(rank.n_calls, {})[rank.rank] = value

    def _begin(self, rank: Rank) -> None:
        if rank.machine.phase != "member" or rank.position.committed >= self.n_steps:
            rank.doing = "rests"
            return
        self._act(rank, rank.machine.begin())
        rank.step, rank.gradients = rank.machine.state.committed, ()
        assert rank.position.committed == rank.step == len(rank.weights), "J4"
        aim = rank.feed.begin(rank.position.ledger, rank.step, rank.rank, self._engine(rank).size)
        if aim is not None:
            rank.stream.aim, rank.stream.n = aim, 0
        rank.doing = "takes"
        if rank.feed.due is None:
            self._reduce(rank)

    def _take(self, rank: Rank) -> None:
        due = rank.feed.due
        assert due is not None
        rank.gradients += rank.stream.take(len(due.numbers))
        rank.feed.took()
        if rank.feed.due is None:
            self._reduce(rank)

    def _reduce(self, rank: Rank) -> None:
        self._call(rank, rank.gradients, "reduces")

    def _end(self, rank: Rank) -> None:
        engine = self._engine(rank)
        result = engine.result(rank.n_calls)
        assert result is not None
        # Before all have joined a call, all have left the one before it.
        engine.calls.pop(rank.n_calls - 1, None)
        rank.n_calls += 1
        if rank.doing == "copies":
            table = rank.machine.table
            assert isinstance(table, Table)
            if rank.duty == "copy":
                rank.weights, state = result[table.source_rank or 0]
                rank.position.load_state_dict(state)
            rank.machine.prepared()
            self._check(rank)
            self._begin(rank)
        elif rank.doing == "reduces":
            rank.held = tuple(number for numbers in result for number in numbers)
            rank.machine.reduced()
            self._call(rank, rank.machine.wants_end, "waits")
        else:
            actions = rank.machine.passed(is_last=any(result))
            self._apply(rank)
            if not actions:
                self._begin(rank)
            self._act(rank, actions)

    def _fail(self, rank: Rank) -> None:
        self._act(rank, rank.machine.fail("a call has failed"))

    def _settle(self, rank: Rank) -> None:
        rank.feed.fenced()
        if rank.feed.phase == "settling" and not rank.machine.state.in_doubt:
            rank.feed.dropped()

    def _apply(self, rank: Rank) -> None:
        rank.weights = (*rank.weights, rank.held)
        rank.position.applied()
        rank.feed.committed()
        rank.held = rank.gradients = ()
        self._check(rank)

    # --- What must hold ---

    def _check(self, rank: Rank) -> None:
        step = rank.position.committed
        assert len(rank.weights) == step, "J4: weights and position are of different steps"
        trained = [number for numbers in rank.weights for number in numbers]
        expected = [number for one in range(step) for number in rank.position.ledger.numbers(one)]
        assert trained == expected, f"J2, J3: {rank.name} has trained {trained} in {step} steps"
        assert self.truth.setdefault(step, rank.weights) == rank.weights, "J3: two histories of one step"


def key(world: World) -> bytes:
    """Return a digest that is equal for worlds that are."""
    found = io.BytesIO()
    pickler = pickle.Pickler(found)
    # Without the identity of objects: equal worlds have equal bytes.
    pickler.fast = True
    pickler.dump(world)
    return hashlib.blake2b(found.getvalue(), digest_size=16).digest()


def search(world: World, most: int) -> tuple[int, int, bool]:
    """Visit all worlds that follow from one, breadth first.

    Args:
        world: Where to begin.
        most: Worlds to visit at most.

    Returns:
        How many were visited, in how many all steps are committed on all ranks, and whether that is all.

    Raises:
        AssertionError: What must hold does not, or a rank can go no further; with the events that led there.
    """
    seen = {key(world)}
    due: list[tuple[bytes, tuple[Event, ...]]] = [(pickle.dumps(world), ())]
    n_over = 0
    for packed, path in due:
        now: World = pickle.loads(packed)
        n_over += now.is_over()
        for event in now.events():
            after: World = pickle.loads(packed)
            try:
                after.do(event)
            except AssertionError as error:
                raise AssertionError(f"{error} after {[*path, event]}") from error
            if (digest := key(after)) not in seen:
                if len(seen) == most:
                    return len(seen), n_over, False
                seen.add(digest)
                due.append((pickle.dumps(after), (*path, event)))
    return len(seen), n_over, True
