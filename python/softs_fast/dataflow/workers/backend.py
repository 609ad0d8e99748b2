"""What a flow needs of the workers that run its tickets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..link.elements import ElementsRead
from ..link.results import Result
from ..master.holdings import Frees, Holdings
from ..master.order.deadlines import Seen
from ..master.order.steps import Abort, Step
from ..process.work import Work
from ..store.values import Value
from .doing import Doing
from .sightings import Sight

__all__ = ["Back", "Backend", "Done", "ElementReads", "Event", "Loaded", "Lost", "WaitInterrupted"]


@dataclass(frozen=True)
class Done:
    """A worker's part in a step has ended, well or not.

    Attributes:
        worker: Number of the worker.
        result: Result of the part; its columns hold places.
        cause: Exception of the part, where it was raised in this process.
    """

    worker: int
    result: Result
    cause: BaseException | None = None


@dataclass(frozen=True)
class Lost:
    """A worker is gone, with what it held.

    Attributes:
        worker: Number of the worker.
        reason: Text with what is known of the end of the worker.
        returns: Whether it is started again; `Back` or another `Lost` follows.
    """

    worker: int
    reason: str
    returns: bool = False


@dataclass(frozen=True)
class Back:
    """A worker that was lost has been started again, and has made the objects of its roles.

    Attributes:
        worker: its number.
    """

    worker: int


@dataclass(frozen=True)
class Loaded:
    """The head of a shard has answered a request for elements.

    Attributes:
        answer: Answer of the head; its columns hold places.
        cause: Exception of its failure, where it was raised in this process.
    """

    answer: ElementsRead
    cause: BaseException | None = None


Event = Done | Lost | Back | Loaded


class WaitInterrupted(KeyboardInterrupt):
    """Ctrl-C has ended a wait for messages, and none is lost: the flow may go on."""


class ElementReads(Protocol):
    """Has elements of datasets read.

    Attributes:
        reads_ahead: whether workers read while functions run.
    """

    reads_ahead: bool

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Have the head of a shard read elements; returns what is read already, the rest comes by `Backend.wait`.

        Args:
            worker: Number of the worker that is the head.
            request: Number that the answer has.
            source: Number of the dataset in the declaration.
            numbers: Numbers of the elements in the shard, in growing order.
        """

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have; None if one of them is no sequence.

        Raises:
            FlowError: a worker does not answer.
        """


class Backend(Protocol):
    """Runs steps, strictly by ticket on each worker. One thread uses it; any thread may read `doing` and `sights`.

    Attributes:
        cuts_rows: Whether each worker of a role has an object of its own, and so a part of the rows.
        doing: Record of what that thread does.
    """

    cuts_rows: bool
    doing: Doing

    @property
    def elements(self) -> ElementReads:
        """What has elements of datasets read."""

    def open(self, held: Holdings) -> list[Hook]:
        """Make the objects of all roles; returns hooks that have to run before anything else.

        Args:
            held: Tracker of values, which is told what goes from node to node.

        Raises:
            FlowError: a worker process could not begin.
        """

    def close(self, *, goes_on: bool = False) -> None:
        """Drop all objects and rows; idempotent. `goes_on`: the flow will be opened again."""

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Any]:
        """Keep values of rows, for all workers; returns a place for each."""

    def values(self, places: Sequence[Any]) -> list[Value]:
        """Return the values at places."""

    def free(self, frees: Frees) -> None:
        """Workers may drop all that they hold of some rows."""

    def free_bytes(self) -> int | None:
        """Return how many bytes of values fit where they lie, on the host with the least; None: they are in this process."""

    def send(self, worker: int, step: Step, work: Callable[[], Work | None]) -> None:
        """Have a worker run its part of a step. `work` says what is to be done; None: nothing is left of its rows."""

    def abort(self, worker: int, abort: Abort) -> None:
        """Have a worker skip a step that waits there."""

    def wait(self, timeout_s: float | None) -> list[Event]:
        """Run or await what has been sent; returns what has ended, nothing if no step is open or the time is over.

        Raises:
            WaitInterrupted: by Ctrl-C in a wait for messages.
        """

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        """Return what is seen of workers that have not ended a step; without those that have, or cannot be ended."""

    def held_back(self) -> frozenset[int]:
        """Return tickets of which a worker has not been told yet, as values are on their way to its host for another step."""

    def sights(self, timeout_s: float, *, stacks: bool = False) -> dict[int, Sight]:
        """Return what each worker process is inside of, by its number, with its Python code if asked; any thread may ask."""

    def end(self, worker: int, reason: str) -> None:
        """End the process of a worker at once; it is lost for this reason."""

    def beside(self) -> frozenset[int]:
        """Return the workers that are on the host of the master."""

    def check_hook(self, hook: Hook, owner: Placement | None) -> None:
        """Check that a hook can be posted.

        Raises:
            ConfigError: it cannot run there.
        """

    def object_of(self, role: Placement) -> Any:
        """Return the object of a role.

        Raises:
            ConfigError: it is in another process.
        """

    def inside(self) -> dict[int, dict[str, Any]]:
        """Return what each worker process is inside of, by its number.

        Raises:
            FlowError: a worker does not answer.
        """

    def model_config(self, role: Placement) -> Any:
        """Return what `model_config` of a role says.

        Raises:
            FlowError: its worker does not answer.
        """
