"""One vocabulary: an option has one meaning in all commands, and each description stands alone."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import softs_fast
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
    # Most files have none, and parsing all takes long.
    for node in ast.walk(ast.parse(text)) if "Args:" in text or "Attributes:" in text else ():
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


#: What the vocabulary says instead of a name of a parameter.
INSTEAD = {
    "answer_s": "call_timeout_s",
    "connect_s": "connect_timeout_s",
    "count": "n_workers, or n_ and what is counted",
    "dead_after_s": "lost_after_s",
    "grace_s": "reconnect_timeout_s",
    "lease_s": "lost_after_s",
    "member": "rank or worker_id",
    "patience_s": "rejoin_timeout_s",
    "rejoin_s": "rejoin_timeout_s",
    "stall_s": "lost_after_s",
    "why": "reason",
    "world": "world_size",
}
#: Methods that end something, beside `close`: those of other packages, by which their users call them.
ENDINGS = {
    "Broker.stop": "softs",
    "Supplier.stop": "softs",
    "Worker.stop": "softs",
    "SelectiveAveraging.shutdown": "torchgfn",
    "Strategy.shutdown": "zerfoo",
}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions, classes and methods that the package and its rooms export, with their names."""
    rooms = [one.name for one in pkgutil.iter_modules(softs_fast.__path__) if one.ispkg]
    for module in [softs_fast, *(importlib.import_module(f"softs_fast.{room}") for room in rooms)]:
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name, None)
            if inspect.isclass(found):
                for part, value in vars(found).items():
                    method = getattr(value, "__func__", value)
                    if not part.startswith("_") and inspect.isfunction(method):
                        yield f"{name}.{part}", method
            if callable(found):
                yield name, found


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; none if it is native and does not tell."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []


def test_parameters_have_the_names_of_the_vocabulary() -> None:
    found = {(name, one.name): one.annotation for name, function in public() for one in parameters(function)}
    assert len(found) > 1000
    assert sorted((*key, INSTEAD[key[1]]) for key in found if key[1] in INSTEAD) == []
    # A worker is named by its rank, an int, or by its worker_id, a text.
    assert [
        key for key, annotation in found.items() if key[1] == "worker" and annotation in ("str", str)
    ] == []


def test_what_ends_is_closed() -> None:
    found = {
        name for name, _ in public() if name.partition(".")[2] in ("stop", "shutdown", "end", "terminate")
    }
    assert found == {*ENDINGS}
