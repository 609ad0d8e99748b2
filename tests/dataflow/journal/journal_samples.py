"""Records of journals, drawn at random."""

from __future__ import annotations

import random

from softs_fast.dataflow.journal.records import CommonSave
from softs_fast.dataflow.master.rows.saved import NEW, SavedGroup, SavedPartition, SavedRows

LINES = ("rows stay together in groups of 2; digests: False", "role a: é on [0]")


def some_save(rng: random.Random, name: str = "save-1") -> CommonSave:
    """Return a save."""

    def number() -> int:
        return rng.choice([0, 1, 127, 1 << 20, (1 << 63) - 1])

    names = ["train", "val", "a.train", "é"]
    counts = [{one: number() for one in rng.sample(names, rng.randrange(4))} for _ in range(5)]
    partitions = {
        one: SavedPartition(number(), {reason: number() for reason in rng.sample(names, 2)}, number())
        for one in ("train", "val")
    }
    groups = tuple(
        SavedGroup(rng.choice(names), rng.choice([NEW, number()]), tuple(rng.sample(names, rng.randrange(3))))
        for _ in range(rng.randrange(6))
    )
    rows = SavedRows(number(), partitions, *counts[:2])
    return CommonSave(number(), name, rows, groups, *counts[2:5], number())
