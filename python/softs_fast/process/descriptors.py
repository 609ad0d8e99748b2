"""How many descriptors, hence connections, this process may have."""

from __future__ import annotations

from contextlib import suppress

__all__ = ["raise_descriptor_limit"]


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one, for a process that serves a connection per peer.

    Most systems start a process with 1,024, which `select` once needed. A system that refuses leaves the limit as it is.
    """
    import resource  # Windows has none; servers do not run there

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
