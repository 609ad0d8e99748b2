"""The bytes of a journal: cut at each byte, changed at each byte, of another version; and records that are none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from journal_samples import DECLARED, some_save

from softs_fast.dataflow.journal.records import MAGIC, PAGE, Declared, Record, encode, scan
from softs_fast.dataflow.rows.saved import SavedGroup, SavedPartition, SavedRows
from softs_fast.errors import WireError


def file_of(*records: Record) -> bytes:
    return MAGIC + b"".join(map(encode, records))


def test_records_are_read_as_they_were_written() -> None:
    records = [DECLARED, *(some_save(random.Random(seed)) for seed in range(50))]
    data = file_of(*records)
    assert scan(data) == (records, len(data))


def test_a_file_that_is_cut_at_any_byte_has_the_records_before() -> None:
    records = [DECLARED, some_save(random.Random(1)), some_save(random.Random(2))]
    ends = [len(file_of(*records[:n])) for n in range(4)]
    data = file_of(*records)
    for n in range(len(data) + 1):
        whole = sum(end <= n for end in ends[1:])
        found, used = scan(data[:n])
        assert found == records[:whole]
        assert used == (ends[whole] if n >= ends[0] else 0)


@pytest.mark.parametrize("n_zeros", [1, 7, 12, 13, 4096])
def test_zeros_at_the_end_are_no_record(n_zeros: int) -> None:
    data = file_of(DECLARED, some_save(random.Random(1)))
    assert scan(data + bytes(n_zeros)) == scan(data)


@pytest.mark.parametrize("n_before", [1, 5, 11, 12, 13, 2000, PAGE])
def test_pages_of_the_last_record_that_were_not_written_cut_it_short(n_before: int) -> None:
    """Pages reach the disk in any order; what was to be in others is zeros then.

    Args:
        n_before: bytes of the record in its first page.
    """
    declared = next(
        one
        for one in (Declared(("x" * n,)) for n in range(2 * PAGE))
        if (len(file_of(one)) + n_before) % PAGE == 0
    )
    groups = tuple(SavedGroup("train", i) for i in range(PAGE))
    before, last = file_of(declared), encode(replace(some_save(random.Random(2)), groups=groups))
    data = before + last
    pages = range(len(before) // PAGE, -(-len(data) // PAGE))
    assert len(pages) >= 3
    for page in pages:
        begin, end = max(page * PAGE, len(before)), min((page + 1) * PAGE, len(data))
        lost = data[:begin] + bytes(end - begin) + data[end:]
        assert scan(lost) == ([declared], len(before))
        # A record behind them says that all of them had been written.
        with pytest.raises(WireError, match=f"damaged at byte {len(before)} of"):
            scan(lost + encode(some_save(random.Random(1))))


def test_a_file_that_is_changed_at_any_byte_never_has_another_record() -> None:
    records = [DECLARED, some_save(random.Random(1)), some_save(random.Random(2))]
    data = bytearray(file_of(*records))
    last = len(file_of(*records[:2]))
    rng, n_refused = random.Random(5), 0
    for n in range(len(data)):
        changed = data.copy()
        changed[n] ^= 1 << rng.randrange(8)
        try:
            found, used = scan(bytes(changed))
        except WireError:
            n_refused += 1
        else:
            # Only a body at the end may have been cut short.
            assert n > last
            assert found == records[:2]
            assert used == last
    assert n_refused > last


def test_random_bytes_are_refused_or_cut_short() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        junk = rng.randbytes(rng.randrange(1, 200))
        try:
            found, used = scan(file_of(DECLARED) + junk)
        except WireError:
            continue
        assert (found, used) == ([DECLARED], len(file_of(DECLARED)))


@pytest.mark.parametrize(
    "data", [b"x", b"softs-fast dataflow journal 2\n", MAGIC[:-1] + b"x", b"\0" * 64], ids=repr
)
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="it does not begin with 'softs-fast dataflow journal 1'"):
        scan(data)


def test_a_record_that_has_a_sound_checksum_and_a_wrong_field_is_refused() -> None:
    save = some_save(random.Random(1))
    for changes in (
        {"step": -1},
        {"step": True},
        {"name": "x" * 256},
        {"name": 3},
        {"groups": (SavedGroup("train", -2),)},
        {"groups": (SavedGroup("train", 0, (1,)),)},  # type: ignore[arg-type]
        {"rows": SavedRows(0, {"train": SavedPartition(0, {"a": -1}, 0)}, {}, {})},
        {"n_read": {"train": -1}},
        {"through": {3: 1}},
        {"versions": []},
        {"n_failed": 1.5},
    ):
        wrong = file_of(DECLARED, replace(save, **changes))  # type: ignore[arg-type]
        with pytest.raises(WireError, match=next(iter(changes))):
            scan(wrong)


def test_a_record_that_is_too_long_is_not_written() -> None:
    with pytest.raises(WireError, match=r"a record of the journal has \d+ bytes; at most 67108864"):
        encode(Declared(("x" * (1 << 26),)))
