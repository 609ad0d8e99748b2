"""The logger of a coordinator that is given none."""

import logging

__all__ = ["LOGGER"]

LOGGER = logging.getLogger("softs_fast.coordination")
