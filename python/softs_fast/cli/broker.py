"""``softs-fast broker``."""

from __future__ import annotations

import argparse
import contextlib

from .. import setup_logging
from ..errors import PeerLost
from ..market import Broker, EndpointConfig
from ..market.metrics import MetricsServer
from ..market.protocol import ControlEndpoints

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Run a broker until a signal comes.

    Raises:
        EndpointInUse: a live broker already serves one of the endpoints, or something else the port for metrics.
        ConfigError: an endpoint or address is malformed, or reachable from other machines without --allow-remote.
        PeerLost: the operating system refused an address, or the broker's thread ended by itself.
    """
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
        print(f"frontend {bound.frontend}\nbackend  {bound.backend}", flush=True)
        bound_control = broker.bound_control_endpoints
        if bound_control is not None:
            print(f"control  {bound_control.control}\ncontrol_pub {bound_control.control_pub}", flush=True)
        if arguments.prometheus is not None:
            metrics = MetricsServer(bound.frontend, arguments.prometheus, allow_remote=arguments.allow_remote)
            stack.enter_context(metrics)
            print(f"metrics  {metrics.url}", flush=True)
        broker.wait()
        raise PeerLost("the broker has stopped by itself; its log says why")
