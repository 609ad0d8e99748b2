"""Workers of a flow on a Ray cluster: one actor for each, which Ray places, and starts again elsewhere."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...fleet import connected_ray, remote_class
from ...trust import Der, bracketed, write_token
from ..declare.declaration import Declaration
from ..process.by_hand import MasterLost, serve_worker
from ..process.worker import Argument
from .fleet_processes import declaration_of
from .host_processes import HostOptions, HostProcesses

__all__ = ["RayProcesses"]


class RayProcesses(HostProcesses):
    """The processes of a flow, each in an actor of Ray; the master is this process.

    Args:
        function: Function that makes the flow, as "package.module:function".
        arguments: Arguments of that function.
        declaration: Declaration of the master's flow.
        options: Options that say how the master waits for the workers; it listens at the address of its node, and
            makes a token.
        resources: Resources of each worker, by its number; a CPU for one that has none here.

    Raises:
        ConfigError: Ray is not installed, or see `HostProcesses`.
    """

    def __init__(
        self,
        function: str,
        arguments: Mapping[str, Argument],
        declaration: Declaration,
        options: HostOptions,
        resources: Mapping[int, Mapping[str, float]],
    ) -> None:
        if unknown := set(resources) - set(declaration.workers):
            raise ConfigError(f"no role is on worker {min(unknown)}, for which there are resources")
        self._ray = connected_ray()
        self._build = functools.partial(declaration_of, function, dict(arguments))
        self._resources = resources
        self._actors: list[Any] = []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "token")
            write_token(path)
            listen = f"tcp://{bracketed(self._ray.util.get_node_ip_address())}:0"
            super().__init__(declaration, replace(options, listen=listen, token_file=path))

    def _listens(self, endpoint: str) -> None:
        for number in self._declaration.workers:
            resources = self._resources.get(number, {"CPU": 1})
            try:
                kind = remote_class(self._ray, _Actor, resources)
            except ValueError as error:
                raise ConfigError(
                    f"Ray refuses the resources of worker {number}, {dict(resources)}: {error}"
                ) from None
            actor = kind.options(scheduling_strategy="SPREAD").remote()
            self._actors.append(actor)
            # What it raises the master has heard from the worker.
            actor.run.remote(endpoint, self._credentials, number, self._build, self._options.lost_after_s)

    def close(self) -> None:
        """End all workers; a flow that begins anew has others."""
        super().close()
        actors, self._actors = self._actors, []
        if self._ray.is_initialized():
            for actor in actors:
                self._ray.kill(actor)


class _Actor:
    """A worker, as Ray runs it."""

    def run(
        self,
        endpoint: str,
        credentials: Der,
        number: int,
        build: Callable[[], Declaration],
        lost_after_s: float,
    ) -> None:
        """Be a worker until the flow ends."""
        try:
            serve_worker(endpoint, number, build, credentials, lost_after_s=lost_after_s, stuck=_begin_anew)
        except MasterLost as lost:
            _begin_anew(lost)


def _begin_anew(lost: MasterLost | None) -> None:
    """End this process: Ray makes the call again in another one, unless the master has ended."""
    os._exit(1)
