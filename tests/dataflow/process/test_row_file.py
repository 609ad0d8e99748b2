"""The file of rows of a save: exact values of every type, and damage that is found before anything is read of it."""

from __future__ import annotations

import base64
import os
import random
import stat
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
from exact_values import same, tensors_of_every_dtype

from softs_fast.dataflow.master.rows.made import Bound, MadeGroup
from softs_fast.dataflow.process.row_file import RowFile, RowFileWriter
from softs_fast.dataflow.store.values import Value
from softs_fast.errors import WireError

OTHERS: list[Value] = [
    *(b"", b"\0\xff", "", "text \udcff \u20ac", True, False, None, 0, -1, 1 << 100, 0.1, float("nan"), -0.0),
    *([], [torch.tensor([1, 2])], [torch.zeros(3, dtype=torch.bfloat16), torch.empty(0), torch.ones(5, 2)]),
]
GROUP = 2


def groups_of(n: int, *columns: str) -> list[MadeGroup]:
    tags = ({"a": 1}, {"b": "x", "c": 0.5, "d": True})
    return [MadeGroup(10 * i, GROUP, 8, i, ("make", "score"), columns, tags, {"look": 1}) for i in range(n)]


def written(path: Path, groups: Sequence[MadeGroup], columns: dict[str, list[Value]]) -> Path:
    file = RowFileWriter(path)
    for name, values in columns.items():
        file.add(name, groups, values)
    file.end(groups, Bound(3, 2))
    file.close()
    file.close()
    return path


def values_of(file: RowFile, wanted: Sequence[MadeGroup]) -> dict[tuple[str, int], Value]:
    return {
        (one.name, row_id): value
        for one in file.columns(wanted, range(len(file.pieces)))
        for row_id, value in zip(one.ids, one.values, strict=True)
    }


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_values_of_every_type_are_the_same(tmp_path: Path) -> None:
    values = [*tensors_of_every_dtype(), *OTHERS]
    values += values[: len(values) % GROUP]
    groups = groups_of(len(values) // GROUP, "a", "b")
    rng = random.Random(1)
    columns = {"a": values, "b": rng.sample(values, len(values))}
    file = RowFile(written(tmp_path / "rows", groups, columns))
    assert list(file.groups.values()) == groups
    assert file.bound == Bound(3, 2)
    found = values_of(file, groups)
    ids = [row_id for one in groups for row_id in one.ids]
    for name, expected in columns.items():
        for row_id, value in zip(ids, expected, strict=True):
            assert same(found.pop((name, row_id)), value)
    assert not found
    some = groups[3:9:2]
    assert {row_id for _, row_id in values_of(file, some)} == {row_id for one in some for row_id in one.ids}


#: A file of four groups of a column, written before rows could have None.
OLDER = (
    "c-kw@Pb(?bO-n2;QAkNFNleShFIOnaFE3Uw<YHui046BS%m4@W|4ULUN*I4bcn|Cu9HuZcO_{;K#KACeNp50x>coYKlNuTqmM}KV;9}xn#1Ir="
    ";$XrMlw;yxMi-noePN>X6b3F4xfzp|m89ks=NC<!v@|oX#LQ$O^Q7evk>ZJymIGa$SYm86k#W+}q{@=i;t7)$7nc-Gn6xA*KR*Y^0cx2rX(?FM1"
    "cXT|lE5N{W)qG$z&wY`-z-p?6-u)~X?7@m#6bd0B_j?#jOIYIY09~-&&*rTiFJB-ohw?)p>-}t?o_b{R5A*xtIs#h-Mglv8XQZhc_{!`zjQM"
)


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(zlib.decompress(base64.b85decode(OLDER)))
    file = RowFile(path)
    groups = [MadeGroup(10 * i, 2, 8, i, ("make",), ("a",), ({}, {"t": 1}), {}) for i in range(4)]
    assert (list(file.groups.values()), file.bound) == (groups, Bound(3, 2))
    expected: list[Value] = [torch.tensor([1, 2, 3]), [torch.tensor([0.5])], b"\xff", "text", True, -5, 0.5]
    expected.append(torch.tensor(2, dtype=torch.bfloat16))
    assert all(map(same, values_of(file, groups).values(), expected))


def test_only_this_user_may_read_it_and_no_file_is_replaced(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = written(tmp_path / "rows", groups_of(1, "a"), {"a": [1, 2]})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        RowFileWriter(path)


def some_file(path: Path) -> tuple[list[MadeGroup], dict[tuple[str, int], Value]]:
    groups = groups_of(3, "a", "b")
    columns: dict[str, list[Value]] = {
        "a": [torch.arange(3 + i) for i in range(6)],
        "b": ["x" * i or None for i in range(6)],
    }
    written(path, groups, columns)
    return groups, values_of(RowFile(path), groups)


def test_a_file_that_is_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    some_file(path)
    data = path.read_bytes()
    for n in range(len(data)):
        path.write_bytes(data[:n])
        with pytest.raises(WireError):
            RowFile(path)
    path.write_bytes(data + b"x")
    with pytest.raises(WireError, match="do not end with an index"):
        RowFile(path)


def test_a_file_that_is_changed_at_any_byte_never_has_another_value(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    groups, expected = some_file(path)
    data = bytearray(path.read_bytes())
    rng, n_refused, n_lost = random.Random(2), 0, 0
    for n in range(len(data)):
        changed = data.copy()
        changed[n] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            file = RowFile(path)
        except WireError:
            n_refused += 1
            continue
        found = values_of(file, groups)
        assert all(same(value, expected[key]) for key, value in found.items())
        # What is lost is one column of one group.
        assert len(found) == len(expected) - GROUP
        n_lost += 1
    assert n_lost > 100
    assert n_refused > 100


def with_index(data: bytes, change: Any) -> bytes:
    """Return a file with another index, and checksums that fit."""
    start, n_bytes, _, _, end = struct.unpack("<QQII8s", data[-32:])
    index = msgpack.unpackb(data[start : start + n_bytes], strict_map_key=False)
    change(index)
    made: bytes = msgpack.packb(index)
    head = struct.pack("<QQI", start, len(made), zlib.crc32(made))
    return data[:start] + made + head + struct.pack("<I", zlib.crc32(head, 1)) + end


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda index: index.pop(), "Expected array of at least length 4, got 3"),
        (lambda index: index.__setitem__(0, -1), "Index.age: Expected int >= 0"),
        (lambda index: index[2][0].__setitem__(1, 3), "has 3 rows and tags of 2"),
        (lambda index: index[2].pop(), "a piece of a with other rows than its groups"),
        (lambda index: index[3][0].__setitem__(1, 1 << 40), "a piece of a that is not in its"),
        (lambda index: index[3][0].__setitem__(5, b"x"), "need integers of 8 bytes"),
        (lambda index: index[3][0].__setitem__(5, struct.pack("<6q", *[-1] * 6)), "that is not in its"),
        (lambda index: index[3][0].__setitem__(5, struct.pack("<6q", *[1 << 62] * 6)), "that is not in its"),
        (lambda index: index[3][0][6].pop(), "with other rows"),
        (
            lambda index: index[3][0][3][0].__setitem__(0, "code"),
            r"Index.pieces\[0\].forms\[0\]\[0\]: Expected str matching regex",
        ),
    ],
)
def test_an_index_with_a_sound_checksum_and_a_wrong_field_is_refused(
    change: Any, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    some_file(path)
    path.write_bytes(with_index(path.read_bytes(), change))
    with pytest.raises(WireError, match=text):
        RowFile(path)


def test_values_that_this_version_cannot_have_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    groups, _ = some_file(path)
    # Each has the bytes of another number of items.
    path.write_bytes(with_index(path.read_bytes(), lambda index: index[3][0][3][0][1][0].__setitem__(1, [9])))
    file = RowFile(path)
    assert {name for name, _ in values_of(file, groups)} == {"b"}


GROUPS = [MadeGroup(4 * i, 2, 8, 0, ("make",), ("a", "b"), ({}, {}), {}) for i in range(4)]


def file_of(path: Path) -> RowFile:
    """Return a file with two pieces of "a" and one of "b"; the value of a row is its id, and half of it in "b"."""
    writer = RowFileWriter(path)
    for column, groups, scale in (("a", GROUPS[:2], 1.0), ("a", GROUPS[2:], 1.0), ("b", GROUPS, 0.5)):
        writer.add(column, groups, [torch.tensor([scale * row_id]) for one in groups for row_id in one.ids])
    writer.end(GROUPS, Bound(1, 1))
    writer.close()
    return RowFile(path)


def test_a_reader_gets_its_pieces_and_of_these_what_is_wanted(tmp_path: Path) -> None:
    file = file_of(tmp_path / "rows")
    assert file.pieces == (("a", (0, 4)), ("a", (8, 12)), ("b", (0, 4, 8, 12)))
    found = [(one.name, one.ids) for one in file.columns(GROUPS, [0, 1, 2])]
    assert found == [("a", (0, 1, 4, 5)), ("a", (8, 9, 12, 13)), ("b", (0, 1, 4, 5, 8, 9, 12, 13))]
    (one,) = file.columns([GROUPS[1], GROUPS[3]], [1])
    assert (one.name, one.ids, torch.cat(one.values).tolist()) == ("a", (12, 13), [12.0, 13.0])  # type: ignore[arg-type]
    (one,) = file.columns([GROUPS[1]], [2])
    assert (one.name, one.ids, torch.cat(one.values).tolist()) == ("b", (4, 5), [2.0, 2.5])  # type: ignore[arg-type]


def test_pieces_without_what_is_wanted_and_those_that_are_not_there_give_nothing(tmp_path: Path) -> None:
    file = file_of(tmp_path / "rows")
    assert list(file.columns([GROUPS[0]], [1, 3, 1 << 20])) == []
    assert list(file.columns([], [0, 1, 2])) == []
