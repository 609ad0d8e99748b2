"""A rendezvous of torchrun: the coordinator says which agents are members, and when they begin anew."""

from __future__ import annotations

import logging
import math
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ...errors import ConfigError, SoftsError
from ...trust import Place
from ..credentials import ClientCredentials
from ..launcher import launched_seat
from ..node.membership import Epoch, Membership

__all__ = ["CoordinatorRendezvous"]

logger = logging.getLogger(__name__)

#: What torchrun calls the backend; as in the entry points of pyproject.toml.
BACKEND = "softs"
_FILES = ("cert", "key", "ca", "token_file")
_NAMES = ("seat", "worker_id", "timeout", *_FILES)


class CoordinatorRendezvous(RendezvousHandler):
    """One agent of torchrun as a worker of a job. Its seat is a node, not a rank: torchrun numbers the ranks.

    When an agent is lost, or its workers fail, the coordinator ends the epoch, and all agents start their workers anew.
    An agent that is done ends no epoch: the workers of the others go on.

    Args:
        parameters: the endpoint is the coordinator's place, the run id the name of its job. The configuration, torchrun's
            `--rdzv-conf`, may have `seat`, by default the number that a launcher gave to the agent; `worker_id`; `timeout`,
            how long it waits for an epoch, seconds; and the files `token_file`, or `ca`, `cert` and `key`.

    Raises:
        ConfigError: a parameter is wrong, or gRPC is not installed.

    Source: own, see docs/coordination.md.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        config, self._parameters = parameters.config, parameters
        for name in config:
            if name not in _NAMES:
                raise ConfigError(f"--rdzv-conf has {name!r}; this backend knows {', '.join(_NAMES)}")
        seat, worker_id = config.get("seat"), config.get("worker_id")
        if seat is not None and not str(seat).isdecimal():
            raise ConfigError(f"seat in --rdzv-conf is {seat!r}; need a whole number, 0 or more")
        self._timeout_s = _timeout_s(config.get("timeout", 900))
        files = {name: Path(config[name]) for name in _FILES if config.get(name) is not None}
        place = Place.parse(parameters.endpoint, "coordinator")
        self._address = parameters.local_addr or place.own_side("coordinator")
        self._member = Membership(
            parameters.endpoint,
            job=parameters.run_id,
            worker_id=None if worker_id is None else str(worker_id),
            seat=launched_seat() if seat is None else int(seat),
            address=self._address,
            credentials=ClientCredentials(*map(files.get, _FILES)),
        )
        self._has_started = False
        # Of the workers of the epoch; only in the process of rank 0.
        self._server: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """True: the agent of rank 0 serves the store of the workers, a new one for each epoch, at a port that is its own."""
        return True

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the name of the job."""
        return self._parameters.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Give up the present epoch, and wait for the next one.

        Raises:
            RendezvousClosedError: the coordinator has refused this agent, or the job has ended.
            RendezvousTimeoutError: there was no epoch in time; the text says what the job waits for.
            RendezvousStateError: the coordinator forms epochs of a size that torchrun was not given.
            RendezvousConnectionError: the address of this host is none at which a store can listen.
        """
        if not self._has_started:
            self._has_started = True
            self._member.start()
        # The workers have ended, so it is not used any more.
        self._server = None
        end_s = time.monotonic() + self._timeout_s
        reason = "torchrun starts the workers of this node anew"
        while True:
            try:
                epoch = self._member.next_epoch(end_s - time.monotonic(), reason)
                self._check(epoch)
                return self._meet(epoch)
            except SoftsError as error:
                if self._member.is_over:
                    raise RendezvousClosedError(str(error)) from error
                if time.monotonic() >= end_s:
                    raise RendezvousTimeoutError(str(error)) from error
                # A member was lost while the members met.
                logger.info("the members of an epoch have not met: %s", error)
                reason = str(error)

    def num_nodes_waiting(self) -> int:
        """Return 1 if the workers are to start anew, else 0; without a request.

        That is so when the epoch is over, unless because an agent was done: its workers need the others no more, and
        the others find out by themselves if they need it.
        """
        fence = self._member.fence
        return int(fence is not None and fence.cause != "left")

    def is_closed(self) -> bool:
        """Return whether this agent will be in no epoch any more."""
        return self._member.is_over

    def set_closed(self) -> None:
        """Leave the job; the others go on."""
        self._member.close("the rendezvous was closed")

    def shutdown(self) -> bool:
        """Leave the job; if the agent has failed, end the connection only, so that another process can take its place."""
        # torchrun calls it when it ends, with its exception if it has failed.
        self._member.close("torchrun is done", leaves=sys.exc_info()[1] is None)
        self._server = None
        return True

    def _check(self, epoch: Epoch) -> None:
        least, most = self._parameters.min_nodes, self._parameters.max_nodes
        if not least <= epoch.size <= most:
            raise RendezvousStateError(
                f"the coordinator has opened an epoch of {epoch.size} nodes, and torchrun was given --nnodes "
                f"{least}:{most}; start both with the same numbers"
            )

    def _meet(self, epoch: Epoch) -> RendezvousInfo:
        """Wait for all members, and have rank 0 tell where the store of their workers is."""
        store = epoch.store
        if epoch.rank == 0:
            try:
                self._server = TCPStore(
                    self._address, 0, None, True, timedelta(seconds=self._timeout_s), wait_for_workers=False
                )
            except RuntimeError as error:
                text = f"cannot serve a store at {self._address}: {error}; give --local-addr"
                raise RendezvousConnectionError(text) from error
            store.set("workers' port", str(self._server.port))
            store.set("workers' address", self._address)
        epoch.meet(self._timeout_s)
        place = RendezvousStoreInfo(
            store.get("workers' address").decode(), int(store.get("workers' port").decode())
        )
        return RendezvousInfo(store, epoch.rank, epoch.size, place)


def _timeout_s(given: Any) -> float:
    try:
        timeout_s = float(given)
    except (TypeError, ValueError):
        timeout_s = math.nan
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout in --rdzv-conf is {given!r}; need seconds, more than 0")
    return timeout_s
