"""The graph of the Rust files of a crate: which file uses a name that another file defines.

The text is read without a compiler. An edge stands for a `use` declaration, or for a path such as
`super::wire::Reply`, that ends at a name defined in another file. Re-exports are followed to the file of the
definition. Code under `#[cfg(test)]` is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLANK = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | \b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*"
        | b?'(?:\\u\{[^}]*\}|\\x..|\\.|[^\\'\n])'""",
    re.VERBOSE | re.DOTALL,
)
_TOKEN = re.compile(r"(?:r\#)?[A-Za-z_]\w*|::|[^\s\w]|\d\w*")
_NAME = re.compile(r"(?:r\#)?[A-Za-z_]\w*")
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_NAMED_ITEMS = frozenset(["fn", "struct", "enum", "union", "trait", "type", "const", "static"])
_ITEMS = _NAMED_ITEMS | {"mod", "use", "impl", "pub", "unsafe", "async", "extern", "macro_rules"}
_UP_TO_SEMICOLON = frozenset(["type", "const", "static", "use"])

Tokens = list[str]
Edges = dict[Path, dict[Path, set[str]]]


@dataclass
class Module:
    """One `mod`, of a file or within braces."""

    file: Path
    parent: Module | None = None
    children: dict[str, Module] = field(default_factory=dict)
    items: set[str] = field(default_factory=set)
    imports: dict[str, list[str]] = field(default_factory=dict)
    globs: list[list[str]] = field(default_factory=list)
    uses: list[list[str]] = field(default_factory=list)
    body: Tokens = field(default_factory=list)

    def root(self) -> Module:
        return self if self.parent is None else self.parent.root()

    def walk(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.walk()


def read_crate(root: Path) -> Module:
    """The modules of the crate with the first file `root`."""
    crate = Module(root)
    _read_file(crate, root.parent)
    return crate


def edges_of(crate: Module) -> Edges:
    """What each file takes from which other file."""
    edges: Edges = {}
    for module in crate.walk():
        edges.setdefault(module.file, {})
        for path in [*module.uses, *_paths(module)]:
            file, name = _resolve(module, path)
            if file is not None and file != module.file:
                edges[module.file].setdefault(file, set()).add(name)
        names = set(module.body)
        for glob in module.globs:
            target, kind, _ = _follow(module, glob, frozenset())
            for name in names & (target.items | set(target.imports)) if target and kind == "module" else ():
                file, _ = _resolve(module, [*glob, name])
                if file is not None and file != module.file:
                    edges[module.file].setdefault(file, set()).add(name)
    return edges


def circles(edges: Edges) -> list[list[Path]]:
    """The strongly connected components of more than one file."""
    reached: dict[Path, set[Path]] = {}
    for start in edges:
        todo, found = [start], set[Path]()
        while todo:
            new = edges.get(todo.pop(), {}).keys() - found
            found |= new
            todo += new
        reached[start] = found
    components = {
        tuple(sorted(other for other in found if file in reached.get(other, ())))
        for file, found in reached.items()
        if file in found
    }
    return sorted(map(list, components))


def describe(circle: list[Path], edges: Edges, base: Path) -> str:
    """The files of a circle and the names that tie them."""
    lines = [
        f"  {file.relative_to(base)} -> {other.relative_to(base)}: {', '.join(sorted(names))}"
        for file in circle
        for other, names in sorted(edges[file].items())
        if other in circle
    ]
    return "\n".join([f"{len(circle)} files use each other:", *lines])


# -- reading ---------------------------------------------------------------------------------------------------------------------


def _read_file(module: Module, folder: Path) -> None:
    source = _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), module.file.read_text())
    tokens = _TOKEN.findall(source)
    is_test_only = tokens[:2] == ["#", "!"] and _is_test(tokens, 2)
    if not is_test_only:
        _read_items(module, tokens, folder)


def _is_test(tokens: Tokens, at: int) -> bool:
    """Whether the attribute with its bracket at `at` is a `cfg` that holds in tests only."""
    end = _group_end(tokens, at)
    words = tokens[at + 1 : end - 1]
    is_negated = any(words[n : n + 3] == ["not", "(", "test"] for n in range(len(words)))
    return words[:1] == ["cfg"] and "test" in words and not is_negated


def _group_end(tokens: Tokens, at: int) -> int:
    """The position behind the group that is opened at `at`."""
    depth = 0
    for n in range(at, len(tokens)):
        depth += (tokens[n] in _OPEN) - (tokens[n] in _CLOSE)
        if depth == 0:
            return n + 1
    return len(tokens)


def _item_end(tokens: Tokens, at: int) -> int:
    """The position behind the item, field or statement that begins at `at`."""
    is_item = tokens[at] in _ITEMS
    kinds = _ITEMS - {"pub", "unsafe", "async", "extern"}
    kind = next((token for token in tokens[at:] if token in kinds), "") if is_item else ""
    if kind == "const" and "fn" in tokens[at : at + 6]:
        kind = "fn"
    while at < len(tokens):
        token = tokens[at]
        if token in _OPEN:
            at = _group_end(tokens, at)
            if token == "{" and kind not in _UP_TO_SEMICOLON:
                return at
            continue
        if token in _CLOSE:
            return at
        at += 1
        if token == ";" or (token == "," and not is_item):
            return at
    return at


def _read_items(module: Module, tokens: Tokens, folder: Path) -> None:
    at = depth = 0
    while at < len(tokens):
        token, name = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        if token == "#" and name == "[" and _is_test(tokens, at + 1):
            while tokens[at : at + 2] == ["#", "["]:
                at = _group_end(tokens, at + 1)
            at = _item_end(tokens, at)
            continue
        if token == "use" and (_NAME.fullmatch(name) or name in ("{", "::")):
            end = tokens.index(";", at)
            _read_use(module, tokens[at + 1 : end], [])
            at = end + 1
            continue
        if depth == 0 and token == "mod" and _NAME.fullmatch(name):
            at = _read_mod(module, tokens, at, folder)
            continue
        if depth == 0 and token in _NAMED_ITEMS and _NAME.fullmatch(name):
            module.items.add(name)
        if depth == 0 and tokens[at : at + 2] == ["macro_rules", "!"]:
            module.items.add(tokens[at + 2])
        depth += (token in _OPEN) - (token in _CLOSE)
        module.body.append(token)
        at += 1


def _read_mod(module: Module, tokens: Tokens, at: int, folder: Path) -> int:
    name = tokens[at + 1]
    child = module.children[name] = Module(module.file, module)
    if tokens[at + 2] == "{":
        end = _group_end(tokens, at + 2)
        _read_items(child, tokens[at + 3 : end - 1], folder / name)
        return end
    in_folder = folder / name / "mod.rs"
    child.file = in_folder if in_folder.exists() else folder / f"{name}.rs"
    _read_file(child, folder / name)
    return at + 3


def _read_use(module: Module, tree: Tokens, prefix: list[str]) -> None:
    path = list(prefix)
    at = 0
    while at < len(tree):
        token = tree[at]
        if token == "{":
            inner = tree[at + 1 : _group_end(tree, at) - 1]
            start = depth = 0
            for n, part in enumerate([*inner, ","]):
                depth += (part in _OPEN) - (part in _CLOSE)
                if part == "," and depth == 0:
                    if inner[start:n]:
                        _read_use(module, inner[start:n], path)
                    start = n + 1
            return
        if token == "*":
            module.globs.append(path)
            return
        if token == "as":
            _import(module, path, tree[at + 1])
            return
        if token != "::":
            path.append(token)
        at += 1
    _import(module, path, None)


def _import(module: Module, path: list[str], alias: str | None) -> None:
    if path[-1] == "self":
        path = path[:-1]
    if path:
        module.imports[alias or path[-1]] = path
        module.uses.append(path)


# -- resolving -------------------------------------------------------------------------------------------------------------------


def _paths(module: Module) -> Iterator[list[str]]:
    """The paths of more than one name in a module's code."""
    tokens, at = module.body, 0
    while at < len(tokens):
        path = [tokens[at]]
        is_start = _NAME.fullmatch(tokens[at]) and (at == 0 or tokens[at - 1] not in (".", "::"))
        at += 1
        while (
            is_start
            and tokens[at : at + 1] == ["::"]
            and at + 1 < len(tokens)
            and _NAME.fullmatch(tokens[at + 1])
        ):
            path.append(tokens[at + 1])
            at += 2
        if len(path) > 1:
            yield path


def _resolve(module: Module, path: list[str]) -> tuple[Path | None, str]:
    """The file that defines what a path names, and the name; no file for what is of another crate or a module as a whole."""
    place, at, name = _follow(module, path, frozenset())
    return (place.file, name) if place is not None and at == "item" else (None, name)


def _follow(
    module: Module, path: list[str], visited: frozenset[tuple[int, str]]
) -> tuple[Module | None, str, str]:
    place, rest = module, list(path)
    if rest[0] == "crate":
        place, rest = module.root(), rest[1:]
    while rest and rest[0] in ("self", "super"):
        if rest[0] == "super":
            if place.parent is None:
                return None, "nothing", path[-1]
            place = place.parent
        rest = rest[1:]
    for n, name in enumerate(rest):
        if name in place.children:
            place = place.children[name]
        elif name in place.items:
            return place, "item", name
        elif (id(place), name) in visited:
            return None, "nothing", name
        else:
            seen = visited | {(id(place), name)}
            targets = (
                [place.imports[name]] if name in place.imports else [[*glob, name] for glob in place.globs]
            )
            for target in targets:
                if target[0] == name and len(target) == 1:
                    continue
                found, kind, last = _follow(place, target, seen)
                if kind == "item":
                    return found, kind, last
                if kind == "module" and found is not None:
                    return _follow(found, rest[n + 1 :], seen) if rest[n + 1 :] else (found, kind, last)
            return None, "nothing", name
    return place, "module", path[-1]
