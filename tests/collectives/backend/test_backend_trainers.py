"""Trainers of other packages, unmodified: they end with the weights that they end with over gloo, to the bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined
from torch.nn.parallel import DistributedDataParallel
from waiting import free_ports

from softs_fast.collectives.backend import register

# The packages take long to import, and compilers to compile.
TRAINING_S = 200
pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * TRAINING_S + 60)]

SIZE = 2
ROWS, STEPS = 32, 4


def weights(module: torch.nn.Module) -> np.ndarray[Any, Any]:
    """Return all weights of a module in a row."""
    return torch.cat([one.detach().flatten().double() for one in module.state_dict().values()]).numpy()


def as_launched(rank: int, size: int, port: int = 0) -> None:
    """Set what torchrun sets."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences of random tokens."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(64, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "labels": tokens}


def with_transformers(rank: int, size: int, folder: str, backend: str, port: int) -> torch.nn.Module:
    """Train a language model; the group exists when Accelerate looks for one."""
    import transformers
    from accelerate.state import AcceleratorState, GradientState

    as_launched(rank, size)
    with joined(rank, size, folder, backend):
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **shape))
        arguments = transformers.TrainingArguments(
            f"{folder}/{backend}",
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
        trainer.train()
        assert isinstance(trainer.model_wrapped, DistributedDataParallel)
        assert trainer.evaluate()["eval_loss"] > 0
        assert dist.get_backend() == backend
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    return model


def with_lightning(rank: int, size: int, folder: str, backend: str, port: int) -> torch.nn.Module:
    """Train a module; Lightning makes the group."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(24, 100), torch.nn.BatchNorm1d(100), torch.nn.Linear(100, 8)
            )

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            (inputs,) = batch
            loss: torch.Tensor = self.layers(inputs).square().mean()
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    as_launched(rank, size, port)
    register()
    torch.manual_seed(0)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=size,
        strategy=DDPStrategy(process_group_backend=backend),
        max_steps=STEPS,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    inputs = torch.randn(ROWS, 24, generator=torch.Generator().manual_seed(0))
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4))
    assert dist.get_backend() == backend
    dist.destroy_process_group()
    return module


def compiled(compiler: str) -> Callable[..., torch.nn.Module]:
    """Return a training with a compiled DistributedDataParallel; torch cuts the graph at its buckets."""

    def train(rank: int, size: int, folder: str, backend: str, port: int) -> torch.nn.Module:
        with joined(rank, size, folder, backend):
            torch.manual_seed(0)
            # Buckets of 1 MiB, as small as torch makes them here; it needs several to cut the graph.
            module = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(7)])
            model: Any = torch.compile(DistributedDataParallel(module, bucket_cap_mb=1), backend=compiler)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            generator = torch.Generator().manual_seed(rank)
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(8, 300, generator=generator)).square().mean().backward()
                optimizer.step()
            return module

    return train


TRAININGS: dict[str, Callable[..., torch.nn.Module]] = {
    "transformers": with_transformers,
    "lightning": with_lightning,
    "compiled": compiled("aot_eager"),
    "inductor": compiled("inductor"),
}


def trained(
    say: Callable[[Any], None], rank: int, size: int, name: str, folder: str, ports: list[int]
) -> list[np.ndarray[Any, Any]]:
    """Train over both backends, one after the other: to import a trainer takes longer than to use it."""
    return [
        weights(TRAININGS[name](rank, size, folder, backend, port))
        for backend, port in zip(("softs", "gloo"), ports, strict=True)
    ]


# The graph is cut at the buckets of DistributedDataParallel before a compiler sees its parts: one of them shows that.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "inductor" else name for name in TRAININGS],
)
def test_a_trainer_ends_with_the_weights_that_it_ends_with_over_gloo(name: str, tmp_path: Path) -> None:
    with ranks.start(trained, SIZE, name, str(tmp_path), free_ports(2)) as running:
        for pipe in running.pipes:
            assert pipe.poll(2 * TRAINING_S), f"a rank is not done after {2 * TRAINING_S} s"
            told = pipe.recv()
            assert not isinstance(told, ranks.Raised), told.trace
            # Each rank has statistics of its own rows in its buffers.
            over_softs, over_gloo = told
            assert np.isfinite(over_softs).all()
            np.testing.assert_array_equal(over_softs, over_gloo)


def refused(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    import transformers

    as_launched(rank, size)
    with pytest.raises(ValueError, match="softs") as raised:
        _ = transformers.TrainingArguments(folder, use_cpu=True, ddp_backend="softs").device
    return str(raised.value)


def test_accelerate_refuses_the_name_of_the_backend(tmp_path: Path) -> None:
    """As docs/collectives.md says: when this fails, the group need not be made before."""
    with ranks.start(refused, 1, str(tmp_path)) as running:
        assert running.pipes[0].poll(TRAINING_S)
        told = running.pipes[0].recv()
    assert "assigned backend softs is not available" in str(told)
