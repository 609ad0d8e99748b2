"""Why a group has ended, for its other ranks, in the store in which they met."""

from __future__ import annotations

import json
import socket

from softs_fast.collectives.bounded_store import BoundedStore
from softs_fast.collectives.rendezvous import KeyValueStore

_MOST_TEXT = 1000
# A store that is lost itself must not delay the end of the group for longer.
_TIMEOUT_S = 1.0


class Reasons:
    """The reason of the first rank that gave up. A store that does not answer is asked once.

    Args:
        store: Store that all ranks reach.
        group: Name that no other group in this store has.
    """

    def __init__(self, store: KeyValueStore, group: str) -> None:
        self._store = BoundedStore(store, _TIMEOUT_S)
        self._key = f"softs.reason.{group}"
        self._is_over = False

    def tell(self, rank: int, lost: list[int], reason: str) -> None:
        """Leave a reason, unless there is another one or the store does not answer.

        Args:
            rank: Rank that gives up.
            lost: Ranks that it has found lost.
            reason: Reason in words; cut after 1,000 characters.
        """
        if not self._is_over and self._answers():
            self._is_over = True
            try:
                self._store.set(self._key, json.dumps([rank, lost, reason[:_MOST_TEXT]]).encode())
            except OSError:  # PeerLost, or a folder that is gone
                return

    def told(self) -> tuple[int, list[int], str] | None:
        """Return rank, lost ranks and text of the reason that another rank has left; None if there is none."""
        try:
            said = self._store.get(self._key) if self._answers() else None
            if said is None:
                return None
            rank, lost, reason = json.loads(said)
            found = int(rank), [int(one) for one in lost], str(reason)
        except OSError:
            self._is_over = True
            return None
        except (ValueError, TypeError):
            return None
        self._is_over = True
        return found

    def _answers(self) -> bool:
        """Return whether the server of the store lives: torch prints a page of C++ frames for one that does not."""
        server = self._store.server
        if server is None:
            return True
        try:
            socket.create_connection(server, _TIMEOUT_S).close()
        except OSError:
            self._is_over = True
            return False
        return True
