"""The collectives of an epoch as the body of a step calls them: a fence waits for their end, and a loss ends the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Self

from ...collectives import OpMetrics, Strategy
from ...errors import ConfigError, PeerLost
from .worker_link import WorkerLink

P = ParamSpec("P")


def _in_call(method: Callable[Concatenate[Strategy, P], None]) -> Callable[Concatenate[StepCalls, P], None]:
    """Return a method that makes a call of the epoch's strategy inside of `StepCalls.call`."""

    def call(self: StepCalls, /, *args: P.args, **options: P.kwargs) -> None:
        with self.call() as strategy:
            getattr(strategy, method.__name__)(*args, **options)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class StepCalls(Strategy):
    """The strategy of an epoch, for calls of the user's in a step.

    The worker says that it is ready for another epoch only when no call is pending, so nothing is written to a tensor
    afterwards. A loss that a call meets is told to the coordinator, and ends the epoch.

    Args:
        link: Link of the worker.
        epoch: Number of the epoch of the strategy; once it has ended, all calls raise PeerLost.
        strategy: Strategy that does the work.
    """

    def __init__(self, link: WorkerLink, epoch: int, strategy: Strategy) -> None:
        self._link = link
        self._epoch = epoch
        self._strategy = strategy
        self._place = (strategy.rank, strategy.size)
        self._is_calling = False

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Refuse: the worker joins.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the worker joins the groups of its epochs by itself")

    @property
    def rank(self) -> int:
        """This worker's number in the epoch."""
        return self._place[0]

    @property
    def size(self) -> int:
        """Number of workers in the epoch."""
        return self._place[1]

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics of the epoch so far, by the name of the operation; those of the steps' own reductions too.

        Raises:
            ConfigError: the epoch is over.
        """
        return self._strategy.metrics

    all_reduce = _in_call(Strategy.all_reduce)
    all_reduce_gradients = _in_call(Strategy.all_reduce_gradients)
    reduce_scatter = _in_call(Strategy.reduce_scatter)
    all_gather = _in_call(Strategy.all_gather)
    broadcast_tensor = _in_call(Strategy.broadcast_tensor)
    barrier = _in_call(Strategy.barrier)

    def close(self) -> None:
        """Do nothing: the worker leaves the groups of its epochs by itself."""

    @contextmanager
    def call(self) -> Iterator[Strategy]:
        """Make calls of the strategy in a block, during which the worker is not ready for another epoch.

        Raises:
            ConfigError: It is in such a block: a function of the user's makes a call while gradients are reduced.
            PeerLost: The epoch is over; also in place of a loss in the block.
        """
        link = self._link
        if self._is_calling:
            raise ConfigError(
                "a collective of the body is called during step.backward(), which reduces gradients: use loss.backward()"
            )
        strategy = link.begin_call(self._epoch)
        if strategy is None:
            link.end_call([])
            raise PeerLost(link.why_over(self._epoch))
        self._is_calling = True
        try:
            yield strategy
        except PeerLost as error:
            link.failed(str(error))
            raise PeerLost(link.why_over(self._epoch)) from error
        except ConfigError:
            # All ranks have it, and the group stays usable.
            link.end_call([])
            raise
        except BaseException as error:
            link.raised(error)
            raise
        finally:
            self._is_calling = False
        link.end_call([])
