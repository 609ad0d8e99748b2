"""``softs-fast host``: joins the broker of this host with those of other hosts."""

from __future__ import annotations

import argparse

from ..errors import PeerLost
from .coordinator import add_identity
from .options import AddParser, command, option
from .table import say

__all__ = ["add_command"]

_EPILOG = """\
examples:
  softs-fast host --listen 0.0.0.0 --token-file job.token
  softs-fast host --connect teachers --token-file job.token
  softs-fast run --factory teachers:make_supplier -- softs-fast host --listen 0.0.0.0 --token-file job.token

Of two hosts one listens and either connects. A port is 4700 unless it is given. docs/hosts.md tells more."""


def add_command(add_parser: AddParser) -> None:
    """Add the command of a host."""
    text = "join the broker of this host with those of other hosts until SIGINT or SIGTERM"
    parser = command(add_parser, "host", text, _run, _EPILOG, endless=True)
    option(parser, "--listen")
    option(
        parser, "--connect", "address of another host's link; may be given several times",
        action="append", metavar="HOST:PORT", default=[],
    )  # fmt: skip
    add_identity(parser)
    for name in ("frontend", "backend"):
        option(parser, f"--{name}", shown=f"SOFTS_FAST_{name.upper()}, or ipc:///tmp/softs_{name}.sock")
    option(
        parser, "--control", "endpoint at which students set the model", metavar="ENDPOINT",
        shown="SOFTS_FAST_CONTROL, or ipc:///tmp/softs_control.sock beside the default frontend",
    )  # fmt: skip
    option(parser, "--log-level", default="info")


def _run(arguments: argparse.Namespace) -> None:
    """Run a link until a signal arrives.

    Raises:
        ConfigError: neither --listen nor --connect; an address is malformed; a file cannot be used; or other machines
            could reach the link without a token file or PEM files.
        EndpointInUse: another process listens at the address.
        PeerLost: the operating system refused an address, or the link's thread ended by itself.
    """
    from .. import setup_logging
    from ..link import HostLink
    from ..market import EndpointConfig, default_endpoint
    from ..trust import TlsFiles

    setup_logging(arguments.log_level)
    endpoints = EndpointConfig(
        arguments.frontend or default_endpoint("frontend"), arguments.backend or default_endpoint("backend")
    )
    given = arguments.tls_cert, arguments.tls_key, arguments.tls_ca, arguments.token_file
    with HostLink(
        endpoints,
        listen=arguments.listen,
        connect=arguments.connect,
        control_endpoint=arguments.control,
        credentials=TlsFiles(*given),
    ) as link:
        serves = [] if link.address is None else [f"listens at {link.address}"]
        serves += [f"connects to {', '.join(arguments.connect)}"] if arguments.connect else []
        say(f"host link of {endpoints.frontend} {' and '.join(serves)}")
        try:
            link.wait()
        finally:
            link.drain()
        raise PeerLost("the link has stopped by itself; its log names the cause")
