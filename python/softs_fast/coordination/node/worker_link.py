"""What a worker's node is connected with: a session with the coordinator, the machine, and the engine of the epoch."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence

from ...collectives import Strategy
from ...errors import PeerLost
from ...user_code import text_of_error
from ..credentials import ClientCredentials
from ..job.messages import Fence, Follow, Hello
from ..job.participant import Action, Build, Copy, GiveUp, Say
from ..job.rolling import part_of
from ..session.session import ORPHAN_S
from ..session.store import SessionStore
from .engines import EngineOf, memory_engine
from .following import Channel, follow
from .link import TICK_S, Link
from .serving import Serving
from .training_state import TrainingState

_log = logging.getLogger(__name__)

# The coordinator answers a fault with a fence in milliseconds; without one there is a text of this worker's own.
_ANSWER_S = 1.0


class WorkerLink(Link):
    """The link of a worker that trains, with the engine of its epoch.

    Attributes:
        strategy: Engine of the epoch; None without one.
        leave_reason: Reason that is set once the worker was told to leave; also by a signal handler.
        serving: Last copy of its state to followers beside steps; None without one.
        store: Store of the epoch; None without one.

    Args:
        coordinator, hello, credentials, orphan_s: Those of `Link`.
        logger: Logger of what happens; None for the logger of this module.
        state: State that is copied beside steps; None if `hello` says that none is.
        engine: Function that makes the engines of epochs and of such copies.

    Raises:
        ConfigError: an argument is wrong, or gRPC is not installed.
    """

    def __init__(
        self,
        coordinator: str,
        hello: Hello,
        credentials: ClientCredentials | None,
        logger: logging.Logger | None = None,
        orphan_s: float = ORPHAN_S,
        state: TrainingState | None = None,
        engine: EngineOf = memory_engine,
    ) -> None:
        super().__init__(coordinator, hello, credentials, logger or _log, orphan_s)
        self.strategy: Strategy | None = None
        self.leave_reason: str | None = None
        self.serving: Serving | None = None
        self._state, self._engine = state, engine
        # As a follower, the copy that is to be begun, or was.
        self._copy: Channel | None = None
        self._job, self._worker_id = hello.job, hello.worker_id
        self.store: SessionStore | None = None
        # Ranks in the table of the ranks of the engine.
        self._ranks: Sequence[int] = ()
        self._in_call = False

    @property
    def epoch(self) -> int:
        """The number of the last epoch; 0 before the first one."""
        return 0 if self.machine.table is None else self.machine.table.epoch

    def is_in(self, epoch: int) -> bool:
        """Return whether it is a member of an epoch; with the lock."""
        return self.machine.phase == "member" and self.epoch == epoch

    def raise_if_over(self) -> None:
        """Raise the error of a worker that is in no epoch any more."""
        if self.error is not None:
            raise self.error

    # --- By the thread that trains ---

    def next_build(self, end_s: float, join_s: float) -> Build | Channel | None:
        """Wait for the next thing to do; return None if this worker is a member already.

        That is an engine to build, of which the call begins here; or a channel from which to copy a state beside steps.

        Args:
            end_s: when to give up, on the monotonic clock.
            join_s: how long that is, for the text.

        Raises:
            PeerLost: no epoch in time, the worker leaves, or the coordinator has refused it.
        """
        self.session.check_process()
        with self.changed:
            while self.build is None and self._copy is None and self.machine.phase != "member":
                if self.leave_reason is not None and not self.machine.state.in_doubt:
                    raise PeerLost(
                        f'worker "{self._worker_id}" leaves while it waits for an epoch: {self.leave_reason}'
                    )
                self.raise_if_over()
                if self.machine.phase == "ending" and not self._in_call:
                    self.do(self.machine.ended())
                    continue
                if time.monotonic() > end_s:
                    over = self.machine.over
                    before = "" if over is None else f"; epoch {over.epoch} is over: {over.text}"
                    raise PeerLost(
                        f'worker "{self._worker_id}" is {self.machine.phase}, and in no epoch after {join_s:g} s{before}; '
                        f"{self.session.advice}"
                    )
                self.changed.wait(TICK_S)
            self.raise_if_over()
            build, self.build = self.build, None
            self._in_call = build is not None
            return build or self._copy

    def is_over_within(self, epoch: int, bound_s: float) -> bool:
        """Wait until an epoch is over, for `bound_s` at most; return whether it is."""
        with self.changed:
            return self.wait_for(lambda: not self.is_in(epoch), bound_s)

    def join(self, build: Build, ranks: Sequence[int], prefix: str = "") -> Strategy:
        """Make the engine of some ranks of an epoch, of which this worker is one; a fence ends its calls from now on.

        Args:
            build: Engine that is to be built.
            ranks: Ranks in its table, in the order of their ranks in the engine.
            prefix: Text in front of their keys.

        Raises:
            PeerLost: the epoch is over.
        """
        table = part_of(build.table, ranks)
        store = SessionStore(self.session, self._job, table, prefix=prefix)
        with self.changed:
            self._check_building()
            self.store = store
        strategy = self._engine(table, ranks.index(build.rank), store)
        with self.changed:
            self.strategy, self._ranks = strategy, ranks
            self._check_building()
        return strategy

    def _check_building(self) -> None:
        if self.machine.phase != "building":
            raise PeerLost("the epoch was over before its engine was there")

    def close_engine(self) -> None:
        """Drop the engine, of which no call is pending: that of some members before that of all is made."""
        with self.changed:
            strategy, self.strategy = self.strategy, None
            # torch keeps no reference to the store, which the engine uses until its end.
            store, self.store = self.store, None
        if strategy is not None:
            strategy.close()
        del store

    def begin_call(self, epoch: int) -> Strategy | None:
        """Begin calls of the engine, and return it; None if the epoch is over. `end_call` or `failed` follow."""
        with self.changed:
            self._in_call = True
            return self.strategy if self.is_in(epoch) else None

    def failed(self, text: str) -> None:
        """A call has failed because of another worker, or was ended by a fence."""
        lost = getattr(self.strategy, "lost", [])
        with self.changed:
            self.end_call(self.machine.fail(text, self._ranks[lost[0]] if lost else None))

    def raised(self, error: BaseException, what: str = "") -> None:
        """End the epoch because this worker's own code has raised: the others must not wait for it.

        The worker is ready for another epoch only when its program begins the next step, because most programs end now.

        Args:
            error: Exception.
            what: What could not be done; empty if the exception says it.
        """
        with self.changed:
            self._in_call = False
            if self.serving is not None:
                self.serving.end(text_of_error(error))
            actions = self.machine.fail(what + text_of_error(error), self.machine.rank)
            self.do([action for action in actions if isinstance(action, Say)])
            if actions:
                # The fence has the cause in the coordinator's words; the end of this engine has not.
                self._await_fence()
            self.drop_engine(text_of_error(error))

    def why_over(self, epoch: int) -> str:
        """Return why an epoch is over, in the words of the coordinator if it has said so within a second."""
        with self.changed:
            if self.epoch == epoch:
                self._await_fence()
            over = self.machine.over
            known = "" if over is None or over.epoch != epoch else f": {over.text}"
            return f"epoch {epoch} is over{known}"

    def end_call(self, actions: list[Action]) -> None:
        """Calls have ended: none is pending."""
        with self.changed:
            self._in_call = False
            self.do(actions)
            if self.machine.phase == "ending":
                self.drop_engine("the epoch is over")
                self.do(self.machine.ended())

    def follow(self, channel: Channel) -> None:
        """Copy the state of a source while its epoch goes on; if that fails, another table or copy brings the state."""
        assert self._state is not None

        def overwriting() -> None:
            with self.changed:
                # A table that has come since may say that this worker keeps its weights.
                channel.check()
                self.do(self.machine.overwriting())

        def has(step: int, backlog: int) -> None:
            with self.changed:
                self.raise_if_over()
                self.do(self.machine.followed(channel.number, step, backlog))

        threading.Thread(
            target=self._end_if_leaving, args=(channel,), name="softs-fast follower", daemon=True
        ).start()
        try:
            follow(channel, self._state, overwriting, has)
        except BaseException as error:
            with self.changed:
                if isinstance(error, PeerLost):
                    # Another follower may be lost: then the coordinator begins anew without it.
                    self.wait_for(lambda: self._is_told_more(channel), _ANSWER_S)
                # The members need not wait for a worker that leaves.
                if not self._is_told_more(channel):
                    self._unfollowed(channel, text_of_error(error))
            # One of the user's code is raised again when the state is copied.
            if not isinstance(error, Exception):
                raise
        finally:
            with self.changed:
                if self._copy is channel:
                    self._copy = None
                self.changed.notify_all()
            channel.close()

    def _is_told_more(self, channel: Channel) -> bool:
        return self.leave_reason is not None or self._copy is not channel

    def _end_if_leaving(self, channel: Channel) -> None:
        """End a copy of a worker that is told to leave: the source may send nothing for as long as a step takes."""
        with self.changed:
            while self._copy is channel and self.leave_reason is None:
                self.changed.wait(TICK_S)
            if self._copy is channel:
                channel.end(f"the worker leaves: {self.leave_reason}")
                # A call that waits for keys of the source ends with the connection, which the coordinator closes.
                self.do(self.machine.leave(str(self.leave_reason), at_once=True))

    def _unfollowed(self, channel: Channel, text: str) -> None:
        with self.changed:
            self.do(self.machine.unfollowed(channel.number, text))

    # --- By both, with the lock ---

    def do(self, actions: list[Action]) -> None:
        """Do what the machine wants."""
        for action in actions:
            match action:
                case Copy(copy, rank):
                    self._begin_copy(copy, rank)
                case Build() | GiveUp():
                    self._end_copies("the epoch of the source is over")
        super().do(actions)

    def _begin_copy(self, copy: Follow, rank: int) -> None:
        assert self._state is not None
        self._end_copies("another copy has begun")
        store = SessionStore(self.session, self._job, copy.table, prefix=copy.key_prefix)
        channel = Channel(copy, rank, store, self._engine)
        if rank == channel.source:
            self.serving = Serving(channel, self._state, functools.partial(self._unfollowed, channel))
        else:
            self._copy = channel

    def _end_copies(self, reason: str) -> None:
        for copy in (self.serving, self._copy):
            if copy is not None:
                copy.end(reason)
        self._copy = None

    def end_engine(self, fence: Fence) -> None:
        """End the calls of the engine, and drop it when none is pending."""
        self.build = None
        if self.serving is not None and not fence.planned:
            self.serving.end(fence.text)
        if self._in_call:
            # The thread that is in the call drops the engine: no other one knows when the call has ended.
            self._end_calls(fence.text)
        else:
            self.drop_engine(fence.text)
            self.do(self.machine.ended())

    def drop_engine(self, reason: str) -> None:
        """End the calls of the engine, and drop it."""
        self._end_calls(reason)
        self.close_engine()

    def _end_calls(self, reason: str) -> None:
        is_told = self.store is not None and self.store.end(reason)
        # `give_up` of shared memory waits for the call that is pending.
        end = getattr(self.strategy, "abort", None) or getattr(self.strategy, "give_up", None)
        if not is_told and end is not None:
            end(reason)

    def _await_fence(self) -> None:
        self.wait_for(lambda: not self.machine.awaits_fence or self.error is not None, _ANSWER_S)
