"""The record of a save: read as it was written; with a wrong field, of another version, or no record."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest
from journal_samples import LINES, some_save

from softs_fast.dataflow.journal.records import decode, encode
from softs_fast.dataflow.master.rows.saved import SavedGroup, SavedPartition, SavedRows
from softs_fast.errors import WireError
from softs_fast.records import replace


def test_records_are_read_as_they_were_written() -> None:
    for seed in range(50):
        save = some_save(random.Random(seed))
        assert decode(encode(LINES, save)) == (LINES, save)


def test_the_bytes_are_those_of_the_first_writer() -> None:
    written = (Path(__file__).parent / "saves.hex").read_text().splitlines()
    saves = [some_save(random.Random(seed)) for seed in range(len(written))]
    assert [encode(LINES, one).hex() for one in saves] == written
    assert [decode(bytes.fromhex(one)) for one in written] == [(LINES, one) for one in saves]


def test_what_is_no_record_of_this_version_is_refused() -> None:
    rng = random.Random(3)
    for data in (
        b"",
        b"x",
        msgpack.packb(["softs-fast dataflow save 2", [], 3]),
        *map(rng.randbytes, range(1, 200)),
    ):
        with pytest.raises(WireError, match="record of"):
            decode(data)


def test_a_record_with_a_wrong_field_is_refused() -> None:
    save = some_save(random.Random(1))
    for changes in (
        {"step": -1},
        {"step": True},
        {"name": "x" * 256},
        {"name": 3},
        {"groups": (SavedGroup("train", -2, ()),)},
        {"groups": (SavedGroup("train", 0, (1,)),)},  # type: ignore[arg-type]
        {"rows": SavedRows(0, {"train": SavedPartition(0, {"a": -1}, 0)}, {}, {})},
        {"n_read": {"train": -1}},
        {"through": {3: 1}},
        {"versions": []},
        {"n_failed": 1.5},
    ):
        wrong = encode(LINES, replace(save, **changes))  # type: ignore[arg-type]
        with pytest.raises(WireError, match=next(iter(changes))):
            decode(wrong)


def test_a_record_that_is_too_long_is_not_written() -> None:
    with pytest.raises(WireError, match=r"record of a save: a _Record has [\d,]+ bytes; at most 67,108,864"):
        encode(("x" * (1 << 26),), some_save(random.Random(1)))
