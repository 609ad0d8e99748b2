"""Supervised fine-tuning of a tiny model, as a flow of one training function, with texts of different lengths.

    python examples/sft_tiny.py
    python examples/sft_tiny.py --workers 2

The model learns which letter follows which, from sentences that are strings in the source: a plain function cuts them
into bytes. Every 40 steps the model is judged on held-out sentences and saved; at the end a new flow loads it.
With --workers the model is on so many processes: rows are cut between them, and gradients averaged.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import softs_fast.dataflow as df

ROWS, EVERY, LETTERS = 32, 40, 128
WORDS = {
    "the": ["small", "old", "green"],
    "noun": ["ring", "broker", "window", "segment"],
    "verb": ["opens", "waits", "closes"],
}


class Net(nn.Module):
    """Predicts the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 32)
        self.layers = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, LETTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy of all letters but the first; tokens int64 [rows, longest], -1 behind the end."""
        states, _ = self.layers(self.letters(tokens[:, :-1].clamp(min=0)))
        logits = self.head(states)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=-1)


class Writer(df.Role):
    """Learns to write."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.trained: nn.Module = self.net
        if mesh.device_mesh is not None:
            group = mesh.device_mesh["dp"].get_group()
            self.trained = DistributedDataParallel(self.net, process_group=group)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def train(self, rows: df.Rows) -> dict[str, float]:
        loss = self.trained(rows["tokens"].padded(value=-1))
        self.optimizer.zero_grad()
        (loss * rows.weight).backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        held_out = [tokens_of(text) for text in sentences(seed=1, n=64)]
        return {"held_out": self.net(nn.utils.rnn.pad_sequence(held_out, True, -1)).item()}


def tokenize(rows: df.Rows) -> dict[str, list[Tensor]]:
    """Cut sentences into letters; short ones are dropped, and the source gives others."""
    tokens = [tokens_of(text) for text in rows["text"]]
    rows.drop((i for i, one in enumerate(tokens) if len(one) < 20), reason="short")
    return {"tokens": tokens}


def tokens_of(text: str) -> Tensor:
    """Return the letters of a text as numbers, int64 [length]."""
    return torch.tensor(list(text.encode("ascii")))


def sentences(seed: int, n: int) -> Iterator[str]:
    """Yield sentences of an invented language, which has few words."""
    choice = random.Random(seed)
    for _ in range(n):
        words = [
            "the",
            choice.choice(WORDS["the"]),
            choice.choice(WORDS["noun"]),
            choice.choice(WORDS["verb"]),
        ]
        yield " ".join(words) + "."


def make_flow(n_texts: int, folder: str, n_workers: int) -> df.Flow:
    """Declare the model, and what is done with texts."""
    writer = df.place(Writer, f"dp{n_workers}", on=range(n_workers))
    after = [df.evaluate(every=EVERY), df.save(folder, every=EVERY)]
    calls = [
        df.call(tokenize, "text -> tokens", rows=ROWS),
        df.call(writer.train, "tokens", rows=ROWS, after=after),
    ]
    return df.Flow(calls, source=({"text": text} for text in sentences(0, n_texts)))


def run(n_texts: int, folder: str, n_workers: int) -> None:
    """Train on all texts, load what was saved last, and report; `n_workers` is 0 for one process."""
    arguments: dict[str, Any] = {"n_texts": n_texts, "folder": folder, "n_workers": n_workers or 1}

    def new_flow() -> df.Flow:
        return df.Flow.in_processes("sft_tiny:make_flow", arguments) if n_workers else make_flow(**arguments)

    held_out = []
    with new_flow() as flow:
        for step in flow.steps():
            numbers = step["writer.train"]
            if "held_out" in numbers:
                held_out.append(numbers["held_out"])
                print(f"step {step.number:3}: loss {numbers['loss']:.3f}, held out {numbers['held_out']:.3f}")
        print(f"last step: {step.n_rows} rows, dropped so far: {step.dropped}")
    with new_flow() as flow:
        (writer,) = flow.declaration.roles
        number = flow.load(writer, folder)
        evaluation = flow.post(df.evaluate(writer))
        flow.flush(evaluation)
        again = evaluation.result().numbers["held_out"]
    print(
        f"loaded step {number}: held out {again:.3f}, {'the same' if again == held_out[-1] else 'not the same'}"
    )


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=int, default=5000, help=f"in the source, at least {2 * EVERY * ROWS} (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: all in this one (%(default)s)")
    options = parser.parse_args()
    if not 0 <= options.workers <= ROWS:
        parser.error(f"--workers is {options.workers}; need 0 to {ROWS}")
    if options.texts < 2 * EVERY * ROWS:
        parser.error(f"--texts is {options.texts}; need at least {2 * EVERY * ROWS}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="sft-") as folder:
            run(options.texts, folder, options.workers)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
