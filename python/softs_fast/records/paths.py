"""Where in a value an error is: msgspec says positions, people want names."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

__all__ = ["named"]

_PATH = re.compile(r"(.*) - at `(?:key` in `)?\$(.*)`", re.S)
_STEPS = re.compile(r"\[[^\]]*\]|\.[^.\[]+")


def named(kind: Any, text: str) -> str:
    """Return the text of an error with the path of its field in front, such as `Free.ids[1]: Expected int >= 0`.

    Args:
        kind: Type of the value that was read.
        text: Text of the error, as msgspec words it.
    """
    found = _PATH.fullmatch(text)
    where, said = getattr(kind, "__name__", "value"), text
    if found is not None:
        said, hint = found[1], kind
        for step in _STEPS.findall(found[2]):
            more, hint = _step(hint, step)
            where += more
    return f"{where}: {said.replace('`', '')}"


def _step(hint: Any, step: str) -> tuple[str, Any]:
    """Return a step with the name of its field, and the type that is there."""
    hint = _bare(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields, config = msgspec.structs.fields(hint), hint.__struct_config__
        shift = config.array_like and config.tag is not None
        for at, one in enumerate(fields, shift):
            if step in (f"[{at}]", f".{one.encode_name}"):
                return f".{one.name}", one.type
        return step, None
    items = [one for one in get_args(hint) if one is not ...]
    at = int(step[1:-1]) if step[1:-1].isdigit() else -1
    return step, items[at if at < len(items) else -1] if items else None


def _bare(hint: Any) -> Any:
    """Return a type without its bounds, and without None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        return _bare(others[0]) if len(others) == 1 else None
    return hint
