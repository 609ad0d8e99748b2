"""TLS of a coordinator, from PEM files that may be replaced while it runs."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import ConfigError
from ..credentials import Pem, ServerCredentials
from ..requirements import import_grpc
from .logs import LOGGER

__all__ = ["server_credentials"]


def server_credentials(credentials: ServerCredentials, logger: logging.Logger = LOGGER) -> Any:
    """Return gRPC's credentials, which look at the files at each handshake; None without TLS.

    Raises:
        ConfigError: a file cannot be read.
    """
    grpc = import_grpc()
    first = credentials.read()
    if first is None:
        return None
    version = credentials.version()

    def configuration(pem: Pem) -> Any:
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)

    def fetch() -> Any:
        """Return the files if they are others than the last time."""
        nonlocal version
        present = credentials.version()
        if present == version:
            return None
        version = present
        try:
            pem = credentials.read()
        except ConfigError as error:
            logger.warning("certificates stay as they were: %s", error)
            return None
        logger.info("read the certificates in %s again", credentials.cert)
        return None if pem is None else configuration(pem)

    return grpc.dynamic_ssl_server_credentials(configuration(first), fetch, credentials.ca is not None)
