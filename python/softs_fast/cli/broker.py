"""``softs-fast broker``."""

from __future__ import annotations

import argparse
import contextlib

from .. import setup_logging
from ..errors import PeerLost
from ..market import Broker, EndpointConfig
from ..market.metrics import MetricsServer

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Run a broker until a signal comes.

    Raises:
        EndpointInUse: a live broker already serves one of the endpoints, or something else the port for metrics.
        ConfigError: an endpoint or address is malformed, or reachable from other machines without --allow-remote.
        PeerLost: the operating system refused an address, or the broker's thread ended by itself.
    """
    setup_logging(arguments.log_level)
    broker = Broker(
        EndpointConfig(arguments.frontend, arguments.backend),
        max_queue_per_product=arguments.max_queue_per_product,
        max_order_attempts=arguments.max_order_attempts,
        allow_remote=arguments.allow_remote,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(broker)
        bound = broker.bound_endpoints
        print(f"frontend {bound.frontend}\nbackend  {bound.backend}", flush=True)
        if arguments.prometheus is not None:
            metrics = MetricsServer(bound.frontend, arguments.prometheus, allow_remote=arguments.allow_remote)
            stack.enter_context(metrics)
            print(f"metrics  {metrics.url}", flush=True)
        broker.wait()
        raise PeerLost("the broker has stopped by itself; its log says why")
