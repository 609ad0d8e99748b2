"""Pages of the reference: every public name, from its docstring, and every command, from its parser."""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import os
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import softs_fast
from softs_fast import cli

#: A section of a docstring, with its indented lines.
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example):\n((?: {4}.*\n|\n)*)", re.MULTILINE)
#: Code, which stays as it is, a bullet, and what Markdown would take for markup.
MARKUP = re.compile(r"```.*?```|`(?:(?!\n\n)[^`])+`|^\* |(<|\*|__)", re.MULTILINE | re.DOTALL)
MAX_COLUMNS = 76


class _Recorded(argparse.ArgumentParser):
    """A parser that is kept, as are those of its commands: argparse makes them of the same class."""

    made: ClassVar[list[argparse.ArgumentParser]] = []

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.made.append(self)


class _Bare(str):
    """An annotation that is text, shown without quotes."""

    __repr__ = str.__str__


def modules() -> dict[str, ModuleType]:
    """Return the modules that export names: the package, its rooms, and the modules that these export, by name."""
    rooms = [
        f"softs_fast.{one.name}" for one in pkgutil.iter_modules(softs_fast.__path__) if one.name[0] != "_"
    ]
    found: dict[str, ModuleType] = {}
    left = ["softs_fast", *rooms]
    while left:
        module = importlib.import_module(left.pop(0))
        found[module.__name__] = module
        left += [one.__name__ for name, one in exports(module) if inspect.ismodule(one)]
    return found


def exports(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module with what they stand for."""
    for name in getattr(module, "__all__", ()):
        if not hasattr(module, name):
            importlib.import_module(f"{module.__name__}.{name}")
        yield name, getattr(module, name)


def parsers() -> list[argparse.ArgumentParser]:
    """Return the parser of ``softs-fast`` and those of all its commands."""
    _Recorded.made.clear()
    with mock.patch.object(cli, "argparse", SimpleNamespace(ArgumentParser=_Recorded)):
        cli.parser()
    return [*_Recorded.made]


def pages() -> dict[str, str]:
    """Return the pages of the reference in Markdown, by the names of their files."""
    found = {"commands.md": _commands()}
    homes: dict[int, str] = {}
    for module in modules().values():
        found[f"{module.__name__}.md"] = _page(module, homes)
    return found


def markdown(docstring: str) -> str:
    """Return a docstring of Google's style as Markdown: descriptions of arguments become lists, examples are fenced."""
    text, *sections = SECTION.split(inspect.cleandoc(docstring) + "\n")
    shown = [_escaped(text)]
    for title, body, rest in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        body = textwrap.dedent(body).strip()
        if title == "Example":
            body = body if "```" in body else f"```pycon\n{body}\n```"
        elif title in ("Returns", "Yields"):
            body = _escaped(body)
        else:
            body = _escaped(re.sub(r"^([^\s:][^:\n]*): ", r"- `\1`: ", body, flags=re.MULTILINE))
        shown += [f"**{title}**\n\n{body}\n", _escaped(rest)]
    return "\n".join(shown)


def _escaped(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        return "&lt;" if found[1] == "<" else re.sub(r"(.)", r"\\\1", found[1])

    return MARKUP.sub(escape, text)


def _commands() -> str:
    shown = [
        "# Commands\n\nThe texts of `softs-fast COMMAND --help`. [The command line](../docs/cli.md) tells more.\n"
    ]
    with mock.patch.dict(os.environ, COLUMNS=str(MAX_COLUMNS + 2), NO_COLOR="1"):
        for one in parsers():
            shown.append(
                f"## `{one.prog}` {{ #{one.prog.replace(' ', '-')} }}\n\n```text\n{one.format_help()}```\n"
            )
    return "\n".join(shown)


def _page(module: ModuleType, homes: dict[int, str]) -> str:
    """Return the page of a module. A name that another page has already (`homes`, by identity) is a link to it."""
    page = f"{module.__name__}.md"
    entries: dict[str, list[str]] = {"Classes": [], "Functions": [], "Values": [], "From other pages": []}
    for name, one in exports(module):
        is_class, anchor = inspect.isclass(one), f"{{ #{name} }}"
        if inspect.ismodule(one):
            entries["From other pages"].append(f"- [`{one.__name__}`]({one.__name__}.md)")
        elif not (is_class or inspect.isroutine(one)):
            text = _comment(module, name)
            entries["Values"].append(
                f"### `{name}` {anchor}\n\n```python\n{name} = {_plain(repr(one))}\n```\n\n{text}\n"
            )
        elif (home := homes.setdefault(id(one), f"{page}#{name}")) != f"{page}#{name}":
            link = home.replace(".md#", ".")
            entries["From other pages"].append(f'- <a id="{name}"></a>`{name}`: [`{link}`]({home})')
        else:
            entry = _class(name, one) if is_class else _function(name, one)
            entries["Classes" if is_class else "Functions"].append(f"### `{name}` {anchor}\n\n{entry}")
    shown = [f"# `{module.__name__}`\n\n{markdown(inspect.getdoc(module) or '')}"]
    for title, texts in entries.items():
        shown += [f"## {title}\n", *texts, ""] if texts else []
    return "\n".join(shown)


def _class(name: str, one: type) -> str:
    doc = markdown(inspect.getdoc(one) or "")
    if issubclass(one, BaseException):
        bases = ", ".join(base.__name__ for base in one.__bases__)
        return f"```python\nclass {name}({bases})\n```\n\n{doc}"
    shown = [_function(name, one, "class ")]
    if issubclass(one, enum.Enum):
        shown.append("**Members**: " + ", ".join(f"`{member}`" for member in one.__members__) + "\n")
    members: dict[str, Any] = {}
    for base in one.__mro__:
        if base.__module__.partition(".")[0] == "softs_fast":
            members = {**vars(base), **members}
    for part, value in members.items():
        if part.startswith("_"):
            continue
        heading = f"#### `{name}.{part}` {{ #{name}.{part} }}\n\n"
        if isinstance(value, property):
            returned = getattr(value.fget, "__annotations__", {}).get("return", "")
            kind = f"```python\n{part}{f': {returned}' if returned else ''}\n```\n\n"
            shown.append(heading + kind + markdown(inspect.getdoc(value) or ""))
        elif inspect.isroutine(getattr(one, part, None)) and callable(getattr(value, "__func__", value)):
            bound = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            shown.append(
                heading + _function(part, bound, is_method=not isinstance(value, staticmethod), owner=one)
            )
    return "\n".join(shown)


def _function(
    name: str,
    one: Callable[..., Any],
    prefix: str = "",
    *,
    is_method: bool = False,
    owner: type | None = None,
) -> str:
    doc = inspect.getdoc(getattr(owner, name) if owner else one) or ""
    return f"```python\n{prefix}{name}{_signature(one, is_method)}\n```\n\n{markdown(doc)}"


def _signature(one: Callable[..., Any], is_method: bool) -> str:
    """Return the parameters of a call, one per line if they are many; native code may not tell them."""
    try:
        known = inspect.signature(one)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        two.replace(annotation=_Bare(two.annotation)) if isinstance(two.annotation, str) else two
        for two in known.parameters.values()
    ]
    returned = inspect.Signature.empty if inspect.isclass(one) else known.return_annotation
    returned = _Bare(returned) if isinstance(returned, str) else returned
    text = _plain(str(known.replace(parameters=bare[is_method:], return_annotation=returned)))
    if len(text) <= MAX_COLUMNS - 10:
        return text
    depth, shown = 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter == ")" and shown.count("\n"):
            shown += ",\n)" if "->" not in shown else ")"
        else:
            shown += letter
        if depth == 1 and letter in "(,":
            shown += "\n   " if letter == "," else "\n    "
    return shown


def _plain(text: str) -> str:
    """Replace addresses, and values of enumerations as `repr` shows them."""
    text = re.sub(r"<(\w+(?:\.\w+)+): [^>]*>", r"\1", text)
    return re.sub(r"<factory>|<[^<>]* at 0x\w+>", "...", text)


def _comment(module: ModuleType, name: str) -> str:
    """Return the comment `#:` above the assignment to a name, in the files of its module."""
    file = Path(str(module.__file__))
    for path in sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]:
        if found := re.search(rf"((?:^ *#:.*\n)+) *{name}\b", path.read_text(), re.MULTILINE):
            return _escaped(re.sub(r"^ *#: ?", "", found[1], flags=re.MULTILINE))
    return ""
