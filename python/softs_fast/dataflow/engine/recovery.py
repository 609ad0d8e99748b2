"""Workers that are started again: what is made again, and how they get the weights that they should have."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..declare.declaration import Declaration
from ..declare.hooks import Hook, Load, Publish
from ..declare.roles import Placement
from ..master.master import Master
from ..master.order.steps import CallState, Kind, Step

__all__ = ["Recovery"]

logger = logging.getLogger(__name__)


@dataclass
class _Posted:
    """A hook that restores a worker, and has no answer yet.

    Attributes:
        worker: Worker that the hook restores.
        workers: Workers that take part.
        lost: Those of them that were lost meanwhile.
    """

    worker: int
    workers: frozenset[int]
    lost: set[int] = field(default_factory=set)


class Recovery:
    """Brings a worker that has been started again to where functions of its roles may run there.

    First it loads what the caller had loaded for its roles; then the roles that follow others get their weights; then
    it is restored. Each of these hooks is posted when the one before it has ended.

    Args:
        declaration: Declaration of the flow.
        master: Master of the flow.
    """

    def __init__(self, declaration: Declaration, master: Master) -> None:
        self.n_restarts = 0
        # Rows made again, and left out, of which a warning was given.
        self._n_said = 0, 0
        self._declaration = declaration
        self._master = master
        self._loads: dict[Placement, Load] = {}
        #: Workers of replicas that are not started again.
        self.gone: set[int] = set()
        # By worker, hooks that have to run before it is restored; and by call, those that run.
        self._left: dict[int, deque[Hook]] = {}
        self._calls: dict[int, _Posted] = {}

    def noted(self, hooks: Iterable[Hook]) -> None:
        """Hooks of the caller's have ended well: what they have loaded is loaded again after a restart."""
        for hook in hooks:
            if isinstance(hook, Load):
                self._loads[hook.roles[0]] = hook

    def goes_on_without(self, worker: int) -> bool:
        """A worker is gone, and is not started again; returns whether the flow needs it no more.

        That is so if only replicas of pools were there, and each pool has another one, which is there or is awaited.
        """
        self.gone.add(worker)
        roles = self._declaration.roles
        own = [role for role in roles if worker in role.on]
        left = {role.pool for role in roles if role.on[0] not in self.gone}
        return all(role.pool and role.pool in left for role in own)

    def lose(self, worker: int, reason: str) -> None:
        """A worker is gone that is started again, or that the flow goes on without.

        Args:
            worker: Number of the worker.
            reason: Text on how it has ended, and what was open there.
        """
        self._left.pop(worker, None)
        for one in self._calls.values():
            one.lost |= one.workers & {worker}
        self._master.lose(worker, reason)
        is_gone = worker in self.gone
        logger.warning("%s; %s", reason, "others go on without it" if is_gone else "it is started again")
        self.count_rows()

    def count_rows(self) -> None:
        """Say how many rows are made again, or are left out, since the last time.

        Some are known when a worker is lost, and others when calls that could not read them have their answers.
        """
        rows = self._master.rows
        n_again, n_left_out = rows.n_made_again - self._n_said[0], rows.n_left_out - self._n_said[1]
        self._n_said = rows.n_made_again, rows.n_left_out
        if n_again:
            logger.warning("%d rows are made again", n_again)
        if n_left_out:
            logger.warning(
                "%d rows are left out: a training function has used what is lost of them, and functions that have yet to "
                "use them would get other values",
                n_left_out,
            )

    def give_up(self, worker: int) -> None:
        """A worker is not started again after all."""
        self._left.pop(worker, None)

    def join(self, worker: int, now_s: float) -> None:
        """A worker has been started again, and has made the objects of its roles."""
        self.n_restarts += 1
        self.gone.discard(worker)
        self._master.order.join(worker)
        own = [role for role in self._declaration.roles if worker in role.on]
        hooks: list[Hook] = [self._loads[role] for role in own if role in self._loads]
        hooks += [Publish((role,)) for role in own if role.follows is not None]
        self._left[worker] = deque(hooks)
        self._go_on(now_s)

    def is_own(self, call: CallState) -> bool:
        """Return whether a call is one of the hooks that restore a worker."""
        return call.number in self._calls

    def ended(self, call: CallState) -> bool:
        """A hook that restores a worker has its answer; returns False if it is an error of the flow."""
        one = self._calls.pop(call.number)
        hooks = self._left.get(one.worker)
        if hooks is None:
            return True  # the worker has been lost again
        # If the worker has been lost, and is there again, that was an answer of the process before. If its source has,
        # the source is waited for.
        if one.worker not in one.lost and call.reason is None:
            hooks.popleft()
        elif not one.lost:
            return False
        self._go_on(time.monotonic())
        return True

    def _go_on(self, now_s: float) -> None:
        order = self._master.order
        for worker, hooks in list(self._left.items()):
            if any(one.worker == worker for one in self._calls.values()):
                continue
            if not hooks:
                del self._left[worker]
                order.restored(worker)
                logger.info("worker %d has been started again", worker)
                self._go_on(now_s)  # another one may have waited for it
                return
            hook = hooks[0]
            roles = {role for one in hook.roles for role in (one, one.follows) if role is not None}
            workers = frozenset(number for role in roles for number in role.on)
            if workers - {worker} <= order.alive:
                step = Step(Kind.MAIN, workers, hook, 0.1)
                call = self._master.post_steps(hook.name, (step,), now_s, restores=True)
                self._calls[call] = _Posted(worker, workers)
                order.flush([call])
