"""The server from which workers of these tests are forked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softs_fast.fleet import fork_server

#: What a server imports for users.
PRODUCT = {"_LIBRARIES": fork_server._LIBRARIES, "_OWN": fork_server._OWN}


@pytest.fixture
def full_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is as users have it."""
    for name, value in PRODUCT.items():
        monkeypatch.setattr(fork_server, name, value)


@pytest.fixture(autouse=True, scope="module")
def light_server() -> Iterator[None]:
    """Workers of a module have a server of their own, which does not import torch: they need none, and it takes seconds.

    The server of other tests is there again afterwards.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "_last", None)
        patch.setattr(fork_server, "_LIBRARIES", ())
        patch.setattr(fork_server, "_OWN", "softs_fast.fleet.")
        yield
