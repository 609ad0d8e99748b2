"""``softs-fast worker``: runs workers of a broker that runs already."""

from __future__ import annotations

import argparse
import os
import sys

from .. import setup_logging
from ..errors import FleetError
from ..fleet import Workers
from ..fleet.factory import NamedFactory
from ..market.endpoints import EndpointName, variable_of
from .output import say

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Run workers until a signal arrives, or all of them have ended because the leader stopped them.

    Raises:
        ConfigError: the factory cannot be imported, or returns something else.
        FleetError: a worker failed before it served, or too often.
    """
    setup_logging(arguments.log_level)
    sys.path.insert(0, os.getcwd())
    make_worker = NamedFactory(arguments.factory)
    make_worker.load()
    given: dict[EndpointName, str | None] = {
        "backend": arguments.backend,
        "control_pub": arguments.control_pub,
    }
    environment = {variable_of(name): endpoint for name, endpoint in given.items() if endpoint is not None}
    with Workers(make_worker, environment, arguments.gpus) as workers:
        workers.scale(arguments.count)
        say("1 worker serves" if arguments.count == 1 else f"{arguments.count} workers serve")
        workers.wait()
        error = workers.error()
        if error is not None:
            raise FleetError(error)
