"""Two hosts on one machine of which each part can be killed: brokers here, links in processes as the command runs them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from joined import endpoints_of, token
from waiting import Lines, free_ports

import softs_fast as sf
from softs_fast.market import ControlEndpoints


class Hosts:
    """Two brokers; links join them in processes of their own, as the command runs them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.endpoints = {name: endpoints_of(folder, name) for name in ("student", "teachers")}
        self.controls = {
            name: ControlEndpoints(f"ipc://{folder}/{name}c", f"ipc://{folder}/{name}p")
            for name in self.endpoints
        }
        self.stack = stack
        #: Of the links, those that were killed too.
        self.pids: set[int] = set()
        self._token = str(token(folder).token_file)
        #: Where the link of the teachers listens, and the arguments of both by which they meet.
        self.address = f"127.0.0.1:{free_ports()[0]}"
        self.ends = {"student": ["--connect", self.address], "teachers": ["--listen", self.address]}
        self.brokers = {name: stack.enter_context(self._broker(name)) for name in self.endpoints}
        self.links: dict[str, Lines] = {}

    def join(self) -> None:
        """Start the links of both."""
        for name in self.endpoints:
            self.link(name)

    def link(self, name: str) -> None:
        """Start the link of a host, the first or the next one."""
        command = ["-m", "softs_fast", "host", *self.ends[name], "--token-file", self._token]
        ends = self.endpoints[name]
        command += ["--frontend", ends.frontend, "--backend", ends.backend]
        link = self.links[name] = Lines([*command, "--control", self.controls[name].control])
        self.stack.callback(link.kill)
        self.pids.add(link.process.pid)
        link.match("host link of .*")

    def _broker(self, name: str) -> sf.Broker:
        control, ends = self.controls[name], self.endpoints[name]
        return sf.Broker(ends.frontend, ends.backend, control.control, control.control_pub)
