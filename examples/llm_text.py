"""English sentences without a download: the documentation strings of the installed Python's standard library."""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A tenth of the modules is never trained on.
HELD_OUT_EVERY = 10

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()\-]{30,400}[.!?]")
_CODE = re.compile(r">>>|::|\s{2,}|[(][)]|\b\w+_\w+\b|\b[a-z]+[A-Z]\w*\b")


@dataclass(frozen=True)
class Passages(Sequence[str]):
    """Neighbouring sentences; a passage begins at each sentence.

    Args:
        sentences: Sentences in the order in which they stand in the library.
        n_words: How long a passage is, roughly; or down to half of that.
    """

    sentences: tuple[str, ...]
    n_words: int

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, at: Any) -> Any:
        # Seeded by text: Python hashes it (SHA-512), so neighbouring numbers have nothing in common.
        n_words = random.Random(str(at)).randint(self.n_words // 2, self.n_words)
        chosen: list[str] = []
        words = 0
        while words < n_words:
            chosen.append(self.sentences[at % len(self.sentences)])
            words += chosen[-1].count(" ") + 1
            at += 1
        return " ".join(chosen)


def load_passages(n_words: int) -> dict[str, Passages]:
    """Read the top-level modules of the standard library; their code is parsed and never run.

    Returns:
        "train", and "held_out" from modules that are never trained on.

    Raises:
        FileNotFoundError: this Python comes without the sources of its library.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[str], list[str]] = ([], [])
    for i, path in enumerate(sorted(folder.glob("*.py"))):
        parts[i % HELD_OUT_EVERY == 0].extend(_sentences(path))
    # Some sentences stand in several modules.
    train = dict.fromkeys(parts[False])
    held_out = dict.fromkeys(sentence for sentence in parts[True] if sentence not in train)
    if not train or not held_out:
        raise FileNotFoundError(f"no documentation strings in {folder}: need the library's *.py files")
    return {"train": Passages(tuple(train), n_words), "held_out": Passages(tuple(held_out), n_words)}


def _sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of all documentation strings of a module."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                for sentence in _SENTENCE_END.split(paragraph.replace("\n", " ")):
                    if _PROSE.fullmatch(sentence) and not _CODE.search(sentence):
                        yield sentence
