"""Locks recreated in a forked child: the thread that held one does not exist there."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["renewed_in_forks"]

_HOLDERS: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


def renewed_in_forks(holder: object, name: str) -> None:
    """Give an object a lock, as the attribute `name`, and another one in each fork of this process.

    Native handles that a fork inherits refuse to work there; a call that waits for a lock first would never find that
    out.
    """
    setattr(holder, name, threading.Lock())
    _HOLDERS[holder] = name


def _renew() -> None:
    for holder, name in list(_HOLDERS.items()):
        setattr(holder, name, threading.Lock())


# Windows has no forks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
