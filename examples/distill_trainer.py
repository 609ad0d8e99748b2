"""Distil a sentence encoder into a small one with transformers' Trainer, over softs-fast.

    python examples/distill_trainer.py

Two worker processes run the teacher, MiniLM, on English sentences and send the hidden states of its last layer. The
Trainer takes the loader as it is: `steps_per_epoch` gives it a length. What it needs comes with the extra:
pip install 'softs-fast[examples]'.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

import softs_fast as sf
from llm_teacher import find_model
from llm_text import load_passages
from softs_fast.teachers import EncoderTeacher, Output

N_TOKENS = 24
BATCH_SIZE = 16


def make_teacher() -> EncoderTeacher:
    """Return the teacher; its samples are ids int64 [N_TOKENS], mask bool [N_TOKENS], labels bfloat16 [N_TOKENS, 384]."""
    outputs = {"ids": None, "mask": None, "labels": Output("hidden.6", dtype="bfloat16")}
    return EncoderTeacher(find_model(None), load_passages(N_TOKENS)["train"], N_TOKENS, outputs)


class Student(nn.Module):
    """A BERT of two narrow layers, and a linear map to the width of the teacher."""

    def __init__(self, width: int = 128, teacher_width: int = 384) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=width, num_hidden_layers=2, num_attention_heads=4, intermediate_size=4 * width
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.to_teacher = nn.Linear(width, teacher_width)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss: the squared error of the tokens that are no padding, relative to the teacher's squares."""
        made = self.to_teacher(self.bert(input_ids=ids, attention_mask=mask).last_hidden_state)[mask]
        wanted = labels[mask].float()
        return {"loss": (made - wanted).square().sum() / wanted.square().sum()}


class LiveTrainer(Trainer):
    """A Trainer of a loader; it would make one of a dataset otherwise."""

    def __init__(self, loader: sf.DistillDataLoader, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._loader = loader

    def get_train_dataloader(self) -> sf.DistillDataLoader:
        """Return the loader; Accelerate takes it as it is."""
        return self.accelerator.prepare(self._loader)  # type: ignore[no-any-return]


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    try:
        run(options)
    except KeyboardInterrupt:
        print("\ninterrupted: workers and broker stopped, shared memory freed", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Start the fleet, train, draw the loss."""
    torch.manual_seed(0)
    teacher = make_teacher()
    arguments = TrainingArguments(
        str(options.output.parent),
        num_train_epochs=options.epochs,
        learning_rate=1e-3,
        logging_steps=max(1, options.steps // 10),
        save_strategy="no",
        report_to=[],
    )
    slots = 8 * BATCH_SIZE
    with (
        sf.Fleet(teacher.worker, n_workers=options.workers) as fleet,
        fleet.student(1, teacher.batch_config) as client,
    ):
        client.hello()
        client.set_model("minilm")
        data = sf.DistillIterableDataset(
            0,
            client.generation_value,
            slots,
            teacher.batch_config,
            fleet.endpoints.frontend,
            request_timeout=120,
        )
        with sf.DistillDataLoader(
            data, batch_size=BATCH_SIZE, steps_per_epoch=options.steps, device=arguments.device
        ) as loader:
            trainer = LiveTrainer(loader, model=Student(), args=arguments)
            trainer.train()
            stats = loader.stats
    history = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    draw(history, options.output)
    print(f"loss {history[0][1]:.3f} -> {history[-1][1]:.3f} in {stats.n_batches:,} steps")
    print(
        f"{stats.samples_per_s:,.0f} samples/s; the student waited for {stats.waiting_share:.0%} of the time"
    )
    print(f"picture: {options.output}")


def draw(history: list[tuple[int, float]], path: Path) -> None:
    """Draw the loss into `path`."""
    # Here and not above: workers import this file too and draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from digits_report import SOFT, STYLE

    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), dpi=130, layout="constrained")
        axes.plot(*zip(*history, strict=True), color=SOFT)
        axes.set(
            title="A small encoder learns the hidden states of MiniLM",
            xlabel="step",
            ylabel="relative squared error",
        )
        axes.set_ylim(bottom=0)
        figure.savefig(path)
        plt.close(figure)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3, help="epochs (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of each epoch (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output/distill_trainer.png"), help="picture (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
