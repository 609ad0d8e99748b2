"""English sentences without a download: the documentation strings of the installed Python's standard library."""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: A tenth of the modules is never trained on.
HELD_OUT_EVERY = 10

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()\-]{30,400}[.!?]")
_CODE = re.compile(r">>>|::|\s{2,}|[(][)]|\b\w+_\w+\b|\b[a-z]+[A-Z]\w*\b")


@dataclass(frozen=True)
class Corpus:
    """Sentences in the order in which they stand in the library, split by module."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def passage(self, seed: int, rank: int, number: int, n_words: int, held_out: bool) -> str:
        """Return neighbouring sentences; the same ones for the same arguments.

        Args:
            seed: of the run.
            rank: of the student; each rank has passages of its own.
            number: of the sample in the rank's stream.
            n_words: how long the passage is, roughly; or down to half of that.
            held_out: take it from the modules that are never trained on.
        """
        sentences = self.held_out if held_out else self.train
        # Seeded by text: Python hashes it (SHA-512), so neighbouring numbers have nothing in common.
        draw = random.Random(f"{seed}/{rank}/{number}/{held_out}")
        at = draw.randrange(len(sentences))
        n_words = draw.randint(n_words // 2, n_words)
        chosen: list[str] = []
        words = 0
        while words < n_words:
            chosen.append(sentences[at % len(sentences)])
            words += chosen[-1].count(" ") + 1
            at += 1
        return " ".join(chosen)


def load_corpus() -> Corpus:
    """Read the top-level modules of the standard library; their code is parsed and never run.

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
    return Corpus(tuple(train), tuple(held_out))


def _sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of all documentation strings of a module."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                for sentence in _SENTENCE_END.split(paragraph.replace("\n", " ")):
                    if _PROSE.fullmatch(sentence) and not _CODE.search(sentence):
                        yield sentence
