"""Texts from lists, files and collections with columns; what cannot be read by every worker is refused."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import TEXTS, Pairs, texts_of_a_generator

from softs_fast import ConfigError
from softs_fast.teachers.texts import as_texts


def test_lists_tuples_and_other_iterables() -> None:
    for texts in (TEXTS, tuple(TEXTS), dict(enumerate(TEXTS)).values()):
        assert list(as_texts(texts, None).open()) == TEXTS


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("first\n\n  \t\n  zweite, späte\r\nlast without an end".encode())
    source = as_texts(path, None)
    texts = pickle.loads(pickle.dumps(source)).open()
    assert len(texts) == 3
    assert [texts[i] for i in (2, 0, 1)] == ["last without an end", "first", "zweite, späte"]
    assert texts[0:2] == ["first", "zweite, späte"]


def test_a_file_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    source = as_texts("corpus.txt", None)
    monkeypatch.chdir("/")
    assert list(source.open()) == ["one"]


def test_a_file_is_pickled_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a long text\n" * 10_000)
    assert len(pickle.dumps(as_texts(tmp_path / "corpus.txt", None))) < 1000


def test_a_column_of_a_collection() -> None:
    texts = as_texts(Pairs(TEXTS), "text").open()
    assert len(texts) == len(TEXTS)
    assert (texts[3], texts[1:3]) == (TEXTS[3], TEXTS[1:3])


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ({"text": None}, "text 1 is of type NoneType, expected str: None; remove it"),
        ({"text": float("nan")}, "text 1 is of type float, expected str: nan; remove it"),
        ({"name": "b"}, "text 1: .*'text'"),
        ("b", "text 1: column='text' needs texts with elements that are mappings"),
    ],
)
def test_a_later_element_without_a_text_is_named(element: Any, said: str) -> None:
    texts = as_texts([{"text": "a"}, element], "text").open()
    assert texts[0] == "a"
    with pytest.raises(ConfigError, match=said):
        texts[1]


def test_files_in_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("Grüße\nzwei".encode("utf-8-sig"))
    assert list(as_texts(path, None).open()) == ["Grüße", "zwei"]
    path.write_bytes("eins\n\nGrüße\n".encode("latin-1"))
    texts = as_texts(path, None).open()
    assert texts[0] == "eins"
    with pytest.raises(ConfigError, match=rf"line 3 of {path} is not UTF-8: .*; convert the file"):
        texts[1]


class Endless:
    def __iter__(self) -> Iterator[str]:
        return itertools.repeat("text")


class Unpicklable(Pairs):
    def __reduce__(self) -> Any:
        raise TypeError("it has a lock")


@pytest.mark.parametrize(
    ("texts", "column", "message"),
    [
        (texts_of_a_generator(), None, "type generator cannot be read by every worker; give a list"),
        (iter(TEXTS), None, "type list_iterator cannot be read by every worker"),
        (Endless(), None, "type Endless cannot be read by every worker"),
        (5, None, "type int cannot be read by every worker"),
        (set(TEXTS), None, "type set have no order to repeat"),
        ([], None, "texts are empty"),
        ((), None, "texts are empty"),
        (Pairs([]), "text", "texts are empty"),
        ([*TEXTS, 5], None, "text 20 is of type int, need str"),
        (Pairs(TEXTS), None, "text 0 is of type dict, need str; name the column of the texts"),
        (Pairs(TEXTS), "txt", "unknown column 'txt'; did you mean 'text'?"),
        ([{}], "text", "unknown column 'text'; have none"),
        (Pairs(TEXTS), "label", "text 0 is of type int, need str"),
        (TEXTS, "text", "column='text' needs texts with elements that are mappings, have str"),
        (Unpicklable(TEXTS), "text", "texts cannot be sent to another process: it has a lock; give a list"),
        ("missing.txt", None, r"cannot read .*/missing\.txt: No such file"),
        (os.sep, None, "cannot read /: Is a directory"),
        (__file__, "text", "column='text' is for datasets objects"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, column: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_texts(texts, column)


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    for content in ("", "\n \n\t\n"):
        (tmp_path / "corpus.txt").write_text(content)
        with pytest.raises(ConfigError, match=r"corpus\.txt has no line with more than blanks"):
            as_texts(tmp_path / "corpus.txt", None)
