"""A flow that generates ahead of training, and writes down what it generates and trains with."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from waiting import eventually

import softs_fast.dataflow as df

GROUP, ROWS = 2, 8


class Log:
    """Lines of several processes, each written at once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def add(self, lines: list[str]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
        os.close(descriptor)

    def read(self, what: str) -> list[tuple[int, str]]:
        """Return ids and words of all lines of one kind."""
        path = Path(self.path)
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[1]), line.split()[2]) for line in lines if line.startswith(what)]

    def counts(self, what: str) -> Counter[int]:
        return Counter(row_id for row_id, _ in self.read(what))


class Model(df.Role):
    """Each generated row has a word of its own, in values of several types."""

    log: Log
    n_ahead = 0

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        words = [secrets.token_hex(4) for _ in rows.ids]
        self.log.add([f"generate {row_id} {word}" for row_id, word in zip(rows.ids, words, strict=True)])
        seqs = [
            torch.tensor(list(word.encode())[: 1 + row_id % 8])
            for row_id, word in zip(rows.ids, words, strict=True)
        ]
        parts = [[torch.zeros(3, dtype=torch.bfloat16), torch.tensor(list(word.encode()))] for word in words]
        for i, word in enumerate(words):
            rows.tags[i]["word"] = word
        return {"seq": seqs, "text": words, "parts": parts}

    def train(self, rows: df.Rows) -> dict[str, float]:
        words: list[str] = rows.values_of("text")  # type: ignore[assignment]
        for i, word in enumerate(words):
            letters = list(word.encode())
            assert rows.tags[i]["word"] == word
            assert rows.values_of("seq")[i].tolist() == letters[: len(rows.values_of("seq")[i])]  # type: ignore[union-attr, arg-type]
            assert rows.values_of("parts")[i][1].tolist() == letters  # type: ignore[index, union-attr]
            assert float(rows["reward"][i]) == len(rows.values_of("seq")[i])  # type: ignore[arg-type]
        self.log.add([f"train {row_id} {word}" for row_id, word in zip(rows.ids, words, strict=True)])
        if self.n_ahead:
            n_slots = (rows.step + 1 + self.n_ahead) * ROWS
            # Then there is something to keep at the next save.
            eventually(
                lambda: len(self.log.counts("generate")) >= n_slots, "all that has a slot is generated"
            )
        return {"n": float(rows.n_rows)}


def score(rows: df.Rows) -> dict[str, Tensor]:
    """A function without a role."""
    return {"reward": torch.tensor([float(len(one)) for one in rows.values_of("seq")])}  # type: ignore[arg-type]


def make_flow(
    folder: str, max_age: int = 1, ahead: int = -1, save_every: int = 1, rows: bool = True, waits: bool = True
) -> df.Flow:
    """Return the flow.

    Args:
        folder: Folder of the journal; the log is beside it.
        waits: Whether training waits for what can be generated ahead: only of workers that run beside each other, and with
            a save at each step, because the generator gets weights after each training call.
    """

    def items() -> Iterator[dict[str, Any]]:
        i = 0
        while True:
            yield {"x": torch.tensor([float(i)])}
            i += 1

    ahead = max_age if ahead < 0 else ahead
    Model.log = Log(f"{folder}.log")
    Model.n_ahead = ahead if waits else 0
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> seq, text, parts", rows=4),
        df.call(score, "seq -> reward", rows=4),
        df.call(actor.train, "seq, text, parts, reward", rows=ROWS, after=[df.publish(gen)]),
    ]
    journal = df.Journal(folder, save_every, rows=rows)
    return df.Flow(calls, source=items(), group=GROUP, max_age=max_age, ahead=ahead, journal=journal)
