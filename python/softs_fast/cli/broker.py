"""``softs-fast broker``: runs a broker in the foreground."""

from __future__ import annotations

import argparse
import contextlib

from .. import setup_logging
from ..errors import PeerLost
from ..market import Broker, EndpointConfig
from ..market.protocol import ControlEndpoints
from ..monitoring.prometheus import MetricsServer, parse_address
from .output import say

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Run a broker until a signal arrives.

    Raises:
        EndpointInUse: a live broker already serves one of the endpoints, or the port for metrics is in use.
        ConfigError: an endpoint or address is malformed, or reachable from other machines without --allow-remote.
        PeerLost: the operating system refused an address, or the broker's thread ended by itself.
    """
    if arguments.prometheus is not None:
        parse_address(arguments.prometheus, arguments.allow_remote)
    setup_logging(arguments.log_level)
    endpoints, control = EndpointConfig(arguments.frontend, arguments.backend), arguments.control
    control_pub = arguments.control_pub
    if endpoints == EndpointConfig() or control or control_pub:
        control, control_pub = (
            control or ControlEndpoints.control,
            control_pub or ControlEndpoints.control_pub,
        )
    broker = Broker(
        endpoints,
        control_endpoint=control,
        control_pub_endpoint=control_pub,
        max_queue_per_product=arguments.max_queue_per_product,
        max_order_attempts=arguments.max_order_attempts,
        allow_remote=arguments.allow_remote,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(broker)
        bound = broker.bound_endpoints
        lines = [f"frontend {bound.frontend}", f"backend  {bound.backend}"]
        bound_control = broker.bound_control_endpoints
        if bound_control is not None:
            lines += [f"control  {bound_control.control}", f"control_pub {bound_control.control_pub}"]
        if arguments.prometheus is not None:
            metrics = MetricsServer(bound.frontend, arguments.prometheus, allow_remote=arguments.allow_remote)
            stack.enter_context(metrics)
            lines.append(f"metrics  {metrics.url}")
        # Printed last: a reader of the text can rely on all endpoints.
        say("\n".join(lines))
        broker.wait()
        raise PeerLost("the broker has stopped by itself; its log names the cause")
