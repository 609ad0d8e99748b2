"""The page at /: static files, which poll the status with the owner's key."""

from __future__ import annotations

import functools
from http import HTTPStatus
from pathlib import Path

from .exchange import Reply

__all__ = ["page"]

_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def page(path: str) -> Reply | None:
    """Return a file of the page; None if there is none at this path."""
    if path not in _FILES:
        return None
    name, content_type = _FILES[path]
    return Reply(HTTPStatus.OK, _read(name), content_type, headers=dict(_POLICY))


@functools.cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
