"""``softs-fast host``: joins the broker of this host with those of other hosts."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import PeerLost
from .coordinator import add_identity
from .options import PLACE, AddParser, between, command, option
from .table import say

if TYPE_CHECKING:
    from ..link import HostLink
    from ..market import EndpointConfig

__all__ = ["add_command", "add_link", "joined"]

_EPILOG = """\
examples:
  softs-fast host --listen 0.0.0.0 --token-file job.token
  softs-fast host --connect 'softs://teachers/digits?token_file=job.token'
  softs-fast run --factory teachers:make_supplier -- softs-fast host --listen 0.0.0.0 --token-file job.token

Of two hosts one listens and either connects. A port is 4700 unless it is given. docs/hosts.md tells more."""


_few = between(int, 1, 4)


def add_command(add_parser: AddParser) -> None:
    """Add the command of a host."""
    text = "join the broker of this host with those of other hosts until SIGINT or SIGTERM"
    parser = command(add_parser, "host", text, _run, _EPILOG, endless=True)
    add_link(parser)
    for name in ("frontend", "backend"):
        option(parser, f"--{name}", shown=f"SOFTS_FAST_{name.upper()}, or ipc:///tmp/softs_{name}.sock")
    option(
        parser, "--control", "endpoint at which students set the model", metavar="ENDPOINT",
        shown="SOFTS_FAST_CONTROL, or ipc:///tmp/softs_control.sock beside the default frontend",
    )  # fmt: skip
    option(parser, "--log-level", default="info")


def add_link(parser: argparse.ArgumentParser) -> None:
    """Add the options of a link to other hosts."""
    option(parser, "--listen")
    option(
        parser, "--connect", f"place of another host's link, HOST:PORT or {PLACE}; may be given several times",
        action="append", metavar="PLACE", default=[],
    )  # fmt: skip
    option(
        parser, "--connections", "connections with each other host, 1 to 4", type=_few, metavar="N",
        shown="1 with BBR, else 4",
    )  # fmt: skip
    add_identity(parser)


@contextlib.contextmanager
def joined(
    arguments: argparse.Namespace,
    endpoints: EndpointConfig,
    control: str | None,
    tell: Callable[[str], None] = say,
) -> Iterator[HostLink]:
    """Join a broker with those of other hosts, as the options of `add_link` say, and tell where.

    At the end orders that no supplier has begun go back at once, and samples that are being made are sent.

    Raises:
        ConfigError: neither --listen nor --connect; an address is malformed; a file cannot be used; or other machines
            could reach the link without a token file or PEM files.
        EndpointInUse: another process listens at the address.
        PeerLost: the operating system refused an address.
    """
    from ..link import HostLink
    from ..trust import TlsFiles

    given = arguments.tls_cert, arguments.tls_key, arguments.tls_ca, arguments.token_file
    with HostLink(
        endpoints,
        listen=arguments.listen,
        connect=arguments.connect,
        control_endpoint=control,
        credentials=TlsFiles(*given),
        connections=arguments.connections,
    ) as link:
        serves = [] if link.address is None else [f"listens at {link.address}"]
        serves += [f"connects to {', '.join(arguments.connect)}"] if arguments.connect else []
        tell(f"host link of {endpoints.frontend} {' and '.join(serves)}")
        try:
            yield link
        finally:
            link.drain()


def _run(arguments: argparse.Namespace) -> None:
    """Run a link until a signal arrives.

    Raises:
        ConfigError, EndpointInUse, PeerLost: as `joined`.
        PeerLost: the link's thread ended by itself.
    """
    from .. import setup_logging
    from ..market import EndpointConfig, default_endpoint

    setup_logging(arguments.log_level)
    endpoints = EndpointConfig(
        arguments.frontend or default_endpoint("frontend"), arguments.backend or default_endpoint("backend")
    )
    with joined(arguments, endpoints, arguments.control) as link:
        link.wait()
    raise PeerLost("the link has stopped by itself; its log names the cause")
