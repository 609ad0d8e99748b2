"""The machine of a run, on an event loop: its time, its steps in a thread, its file."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ...errors import ConfigError, SoftsError
from ...user_code import text_of_error
from ..rounds import events
from ..rounds.run import Run
from ..rounds.snapshot import Snapshot
from ..wire.messages import RunConfig, Status, Summary
from ..wire.tensors import Contents
from .options import ServerOptions
from .training.evaluation import Evaluation
from .training.state_file import Saved, save_state
from .training.trainer import Trainer
from .training.weights import Committed, Weights

__all__ = ["Driver"]

_log = logging.getLogger("softs_fast.paramserver")
_Result = TypeVar("_Result")
#: Lines that a status shows.
_LOG_LINES = 50
#: Why a run ends after evaluations that get no better.
_ENOUGH = "the evaluation gets no better"

#: Actions with which a status becomes another one, or a pull may have another answer.
_NEWS = (
    events.Changed | events.Counted | events.Stale | events.Apply | events.Log | events.Ended | events.Welcome
)


class Driver:
    """Does what the machine of a run wants. All methods are called on the event loop.

    Args:
        run: Machine of the run.
        trainer: Trainer, which the driver's thread alone uses from now on.
        weights: Weights that workers get.
        evaluation: Evaluation of versions.
        saved: Keys of the run.
        options: Options of the server.
        config: Configuration of the run, for workers.
    """

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        weights: Weights,
        evaluation: Evaluation,
        saved: Saved,
        options: ServerOptions,
        config: RunConfig,
    ) -> None:
        self.run = run
        self.weights = weights
        self.evaluation = evaluation
        self.config = config
        self.lines: deque[events.Log] = deque(maxlen=_LOG_LINES)
        #: Rises with everything that a status shows, but times.
        self.serial = 0
        #: None: the last file was written; else what failed.
        self.file_trouble: str | None = None
        self.step_s = 0.0
        self.ended = asyncio.Event()
        #: Why there can be no step.
        self.failure: Exception | None = None
        self._trainer = trainer
        self._saved = saved
        self._options = options
        self._contents: dict[int, Contents] = {}
        self._n_contents = 0
        self._n_scaled: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "softs-step")
        self._last_snapshot = run.snapshot()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to watch the time; a run that was over before writes its model again, which may be missing."""
        # Workers join meanwhile, and push.
        self.spawn(self._prepare())
        if self.run.is_over:
            self.spawn(self._end(is_failure=False))
        elif self.evaluation.is_enough:
            # So the server before this one has ended.
            self.tell(events.Stop(_ENOUGH))
        self.tell(events.Tick())

    def tell(self, event: events.Event) -> events.Action | None:
        """Give an event to the machine and do what it wants; return its answer."""
        actions = self.run.handle(self._loop.time(), event)
        answer: events.Action | None = None
        for action in actions:
            match action:
                case events.Apply():
                    shares = [(share, self._contents[share.push.content]) for share in action.shares]
                    _log.debug("step after version %s of %s", action.version, action.shares)
                    self.spawn(self._step(action, shares))
                case events.Save(snapshot):
                    self.spawn(self._save(snapshot))
                case events.Drop(content):
                    self._contents.pop(content, None)
                case events.Changed():
                    pass
                case events.Log(text, is_warning):
                    self.note(text, is_warning)
                case events.Ended(reason, is_failure):
                    self.note(f"the run is over: {reason}", is_failure)
                    self.spawn(self._end(is_failure))
                case _:
                    answer = action
        if any(isinstance(action, _NEWS) for action in actions):
            self.serial += 1
            self.notify()
        self._set_timer()
        return answer

    def keep(self, contents: Contents) -> int:
        """Keep the contents of a push; return their number."""
        self._n_contents += 1
        self._contents[self._n_contents] = contents
        return self._n_contents

    @property
    def kept_bytes(self) -> int:
        """Memory of pushes that no step has used."""
        return sum(one.n_bytes for one in self._contents.values())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work that `close` waits for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note(self, text: str, is_warning: bool = False) -> None:
        """Tell people, by the log and by the status."""
        self.lines.append(events.Log(text, is_warning))
        self.serial += 1
        self.notify()
        _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def notify(self) -> None:
        """Have all that wait for a change look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def release(self) -> None:
        """Have all that wait for a change be answered now: the server ends."""
        self._is_closing = True
        self.notify()

    async def wait_for_change(self, until_s: float) -> bool:
        """Wait for a change; return False if it is too late, or the server ends and has said so before.

        Args:
            until_s: Latest time, on the clock of the loop.
        """
        changed = self._changed
        if self._is_closing:
            return False
        try:
            async with asyncio.timeout_at(until_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def status(self) -> Status:
        """Return what the run does."""
        return self.run.status(self._loop.time())

    def summary(self) -> Summary:
        """Return how the run has ended."""
        status = self.status()
        return Summary(status.timeline, status.version, status.waiting_for, status.loss, self.evaluation.last)

    async def close(self) -> None:
        """Wait for pushes, the step and the file that are under way, after `release`."""
        self._set_timer()
        await self._wait_for_tasks()
        # Members may have left since the last file: their ranks are free for others then.
        if self._last_snapshot != self.run.snapshot() and not self.run.is_over:
            await self._save(self.run.snapshot())
            await self._wait_for_tasks()
        await asyncio.to_thread(self._thread.shutdown)

    async def _wait_for_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    # --- What the machine wants ---

    async def _prepare(self) -> None:
        try:
            await self._call(self._trainer.prepare)
        except Exception as error:
            self.failure = error
            self.ended.set()
            self.notify()

    async def _step(self, action: events.Apply, shares: list[tuple[events.Share, Contents]]) -> None:
        before = self.weights.now.contents
        began_s = self._loop.time()
        try:
            bad, after = await self._call(
                lambda: self._trainer.step(
                    shares, action.rate_factor, action.divisor, self.config.clip_norm, before
                )
            )
        except Exception as error:
            if self.failure is not None:
                return
            _log.exception("the step after version %s failed", action.version)
            reason = f"the step after version {action.version} failed: {text_of_error(error)}"
            self.tell(events.Stop(reason, is_failure=True))
            return
        self.step_s = self._loop.time() - began_s
        for share, factor in self._trainer.scaled:
            self._note_scaled(share, factor)
        if self.run.is_over:
            return
        version = action.version._replace(number=action.version.number + 1)
        self.weights.commit(Committed(version, after))
        if bad is not None:
            self.note(f"the step after version {action.version} is undone: {bad} is not finite", True)
        evaluated = None
        if self.evaluation.is_due(version.number):
            # Before the file of this version, which then knows the result: a later server must not take a worse one for
            # the best.
            evaluated = self._call(lambda: self.evaluation.evaluate(version, self._trainer))
        self.tell(events.Applied(bad is None))
        if evaluated is None:
            return
        try:
            text = await evaluated
        except Exception as error:
            _log.exception("evaluating version %s failed", version)
            self.note(f"evaluating version {version} failed: {text_of_error(error)}", True)
            return
        if text is not None:
            self.note(text)
        self.notify()
        if self.evaluation.is_enough and not self.run.is_over:
            self.tell(events.Stop(_ENOUGH))

    def _note_scaled(self, share: events.Share, factor: float) -> None:
        """Tell of the 1st, 10th, 100th ... push of a worker that was scaled down: those of an honest one may be, too."""
        self._n_scaled[share.push.worker_id] += 1
        n = self._n_scaled[share.push.worker_id]
        if str(n).rstrip("0") == "1":
            self.note(
                f"pushes of rank {share.rank} are longer than {self._options.norm_guard:g} median norms of recent ones, and "
                f"scaled down to that: {n} so far, that for version {share.push.base} by {1 / factor:.3g} times; if they are as "
                "they should be, give a higher --norm-guard, or 0 for any norm",
                True,
            )

    async def _save(self, snapshot: Snapshot) -> None:
        if self.failure is not None:
            return

        def save() -> None:
            trainer, best = self._trainer.state(), self.evaluation.best
            save_state(
                self._options.state, replace(self._saved, snapshot=snapshot, trainer=trainer, best=best)
            )

        try:
            await self._call(save)
        except ConfigError as error:
            self.tell(
                events.Stop(
                    f"the state after version {snapshot.version} cannot be saved: {error}", is_failure=True
                )
            )
            return
        except OSError as error:
            self.file_trouble = f"{self._options.state} cannot be written: {error.strerror or error}"
            self.note(
                f"{self.file_trouble}; the run goes on, and a crash now would lose what the last file does not have",
                True,
            )
            return
        self._last_snapshot = snapshot
        if self.file_trouble is not None:
            self.note(f"{self._options.state} is written again")
        self.file_trouble = None

    async def _end(self, is_failure: bool) -> None:
        try:
            # After a failure the weights may be half of a step.
            if not is_failure:
                self.note(await self._call(lambda: self.evaluation.finish(self.run.version, self._trainer)))
        except Exception as error:
            _log.exception("writing %s failed", self._options.output)
            self.file_trouble = f"{self._options.output} cannot be written: {error}"
            self.note(self.file_trouble, True)
        self.ended.set()
        self.notify()

    def _call(self, what: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Run something in the thread, after all that was given to it before."""
        return self._loop.run_in_executor(self._thread, _bounded, what)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Nothing may begin once the thread is closed.
        wake_s = None if self._is_closing else self.run.next_wake_s()
        self._timer = None if wake_s is None else self._loop.call_at(wake_s, self.tell, events.Tick())


def _bounded(what: Callable[[], _Result]) -> _Result:
    """Call what may call code of the job, and have anything that this raises be an error of the run.

    SystemExit would end the event loop, and no future takes StopIteration.
    """
    try:
        return what()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise SoftsError(f"the job has raised {text_of_error(error)}") from error
