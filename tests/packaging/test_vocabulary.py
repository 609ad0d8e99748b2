"""One vocabulary: an option has one meaning in all commands, and each description stands alone."""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from softs_fast import cli

#: A description that begins so lacks its subject.
BARE = re.compile(
    r"^(?!(?:what|where|when|how|whether) to )(?:of|in|on|at(?! (?:most|least)\b)|by|for|from|to|with(?:in|out)?|under"
    r"|over|above|below|between|since|until|after|before|per|as|than|that|wh(?:ich|at|ere|en|y|ose?)|is|are|was"
    r"|were|ha[sd]|have|does|it|they|there|so|such|not|and|or|but)\b"
)

REPOSITORY = Path(__file__).parents[2]
SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\S[^:]*: .*)", re.MULTILINE)


class Recorded(argparse.ArgumentParser):
    """A parser that keeps what commands add to it and to its groups."""

    added: ClassVar[list[tuple[str, tuple[str, ...], dict[str, Any]]]] = []
    abbreviating: ClassVar[list[str]] = []

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.allow_abbrev:
            self.abbreviating.append(self.prog)

    def add_argument(self, *names: Any, **given: Any) -> argparse.Action:
        if not {"--help", "--version"} & {*names}:
            self.added.append((self.prog, names, given))
        return super().add_argument(*names, **given)

    def add_argument_group(self, *names: Any, **given: Any) -> Any:
        group: Any = super().add_argument_group(*names, **given)
        group.add_argument = self.add_argument_of(group.add_argument)
        return group

    def add_argument_of(self, add: Callable[..., argparse.Action]) -> Callable[..., argparse.Action]:
        def record(*names: str, **given: Any) -> argparse.Action:
            self.added.append((self.prog, names, given))
            return add(*names, **given)

        return record


@pytest.fixture(autouse=True, scope="module")
def recorded() -> None:
    """Record the parser of all commands; argparse makes those of commands of the class of the whole one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "argparse", SimpleNamespace(ArgumentParser=Recorded))
        cli.parser()


def test_an_option_has_one_type_metavar_and_help_in_all_commands() -> None:
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, names, given in Recorded.added:
        text = re.sub(r" \(default: .*\)$", "", given["help"])
        known = {key: value for key, value in given.items() if key not in ("default", "required", "dest")}
        known["help"] = text
        for name in names:
            if name.startswith("-") and known not in found[name]:
                found[name].append(known)
    assert len(found) > 80
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}


def test_a_description_of_an_option_stands_alone() -> None:
    found = [(prog, *names, given["help"]) for prog, names, given in Recorded.added]
    assert [one for one in found if BARE.match(one[-1])] == []


def described(text: str) -> Iterator[tuple[int, str]]:
    """Yield each description of an argument or an attribute in docstrings, with the line of its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for section in SECTION.findall((ast.get_docstring(node) or "") + "\n"):
                yield from ((node.body[0].lineno, entry) for entry in ENTRY.findall(section))


def test_a_description_in_a_docstring_stands_alone() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {entry}"
        for folder in ("python", "tests", "examples", "benches")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for line, entry in described(path.read_text())
        if BARE.match(entry.partition(": ")[2])
    ]
    assert found == []


def test_descriptions_are_found() -> None:
    text = 'def f(a, b):\n    """Do it.\n\n    Args:\n        a: of it,\n            in m.\n        b: Its end.\n    """\n'
    assert list(described(text)) == [(2, "a: of it,"), (2, "b: Its end.")]


def test_an_option_is_written_out() -> None:
    assert Recorded.abbreviating == []
