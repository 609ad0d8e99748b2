"""The fleet on Ray, in a process that it was passed to: a broker and a link of that process, which all hosts join."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.util
import os
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import FleetError, SoftsError
from ..link import HostLink
from ..process import check_process
from ..trust import TlsFiles, bracketed, write_token
from .autoscaler import Loads
from .orders import Orders
from .private_broker import PrivateBroker

__all__ = ["RayFleetClient", "StudentLink"]

logger = logging.getLogger(__name__)

#: How long hosts may take to join, seconds.
_JOIN_S = 30.0
#: How often hosts are asked again, seconds: one that Ray has started again knows nothing of this process.
_AGAIN_S = 5.0


class StudentLink:
    """A broker for the students of this process, and a link that listens for the hosts of a fleet.

    Attributes:
        broker: The broker.
        address: Address of the link.
        token: Token of the link, a new one.
    """

    def __init__(self, node: str) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self.broker = PrivateBroker()
            self._stack.callback(self.broker.close)
            path = self.broker.folder / "token"
            self.token = write_token(path)
            link = HostLink(
                self.broker.endpoints.market,
                control_endpoint=self.broker.endpoints.control,
                listen=f"{bracketed(node)}:0",
                credentials=TlsFiles(token_file=path),
            )
            self._stack.callback(link.close)
            path.unlink()
            assert link.address is not None
            self.address = link.address
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """End the link and the broker. Idempotent."""
        self._stack.close()


class RayFleetClient(Orders):
    """A `RayFleet` in a task or an actor of Ray to which it was passed, such as each worker of Ray Train.

    The first `loader` or `student` starts a broker and a link in this process, and has all hosts of the fleet join it.
    They end with this process, or by `close`.

    Args:
        hosts: Actors of the fleet.
    """

    def __init__(self, hosts: Sequence[Any]) -> None:
        self._hosts = hosts
        self._parts: _Parts | None = None
        self._pid = os.getpid()

    def close(self) -> None:
        """End the broker and the link of this process; the fleet goes on. Idempotent; the next use starts others."""
        if self._parts is not None and os.getpid() == self._pid:
            self._end()
            self._parts = None

    def _broker(self) -> PrivateBroker:
        check_process(self._pid, "the fleet")
        if self._parts is None:
            parts = _Parts(self._hosts)
            self._end = multiprocessing.util.Finalize(self, parts.close, exitpriority=10)
            self._parts = parts
        return self._parts.link.broker

    def __reduce__(self) -> tuple[Any, ...]:
        return RayFleetClient, (self._hosts,)


class _Parts:
    """What runs while a client runs."""

    def __init__(self, hosts: Sequence[Any]) -> None:
        import ray

        self._ray, self._hosts = ray, hosts
        self.link = StudentLink(ray.util.get_node_ip_address())
        self._is_over = threading.Event()
        try:
            asked = self._ask()
            ready, late = ray.wait(asked, num_returns=len(asked), timeout=_JOIN_S)
            ray.get(ready)
            if late:
                logger.warning("%d of %d hosts have not joined after %g s", len(late), len(asked), _JOIN_S)
        except ray.exceptions.RayError as error:
            self.link.close()
            raise FleetError(f"the hosts of the fleet cannot join: {error}") from None
        except BaseException:
            self.link.close()
            raise
        threading.Thread(target=self._ask_again, name="softs-fleet-hosts", daemon=True).start()

    def close(self) -> None:
        """End the link and the broker."""
        self._is_over.set()
        self.link.close()

    def _ask(self, students: Sequence[tuple[float, float]] = ()) -> list[Any]:
        return [
            host.join.options(max_task_retries=0).remote(self.link.address, self.link.token, students)
            for host in self._hosts
        ]

    def _ask_again(self) -> None:
        """Until the end; a host that is gone for now is asked the next time."""
        with contextlib.closing(Loads(self.link.broker.endpoints.frontend, set)) as loads:
            while not self._is_over.wait(_AGAIN_S) and self._ray.is_initialized():
                students: Sequence[tuple[float, float]] = ()
                with contextlib.suppress(SoftsError):
                    load = loads.look()
                    students = () if load is None else load.students
                asked = self._ask(students)
                for one in self._ray.wait(asked, num_returns=len(asked), timeout=_AGAIN_S)[0]:
                    with contextlib.suppress(self._ray.exceptions.RayError):
                        self._hosts = self._ray.get(one) or self._hosts
