"""The student's side of distill_llm.py: a smaller layer, trained on what the teacher's layer takes and returns."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from llm_checkpoint import Checkpoint, LayerResult
from llm_teacher import Layout

Batch = dict[str, Tensor]
#: The learning rate rises over this share of the batches, and falls over the rest.
WARM_UP = 0.1


class StudentLayer(nn.Module):
    """A layer of a transformer with fewer heads and a narrower feed-forward part than its teacher's.

    Before training it returns what it is given, so its error is that of leaving the layer out.

    Args:
        layout: that of the teacher.
        shrink: heads and feed-forward width are the teacher's, divided by this.
    """

    def __init__(self, layout: Layout, shrink: int) -> None:
        super().__init__()
        self.causal = layout.causal
        self.heads = max(1, layout.heads // shrink)
        width = self.heads * (layout.hidden // layout.heads)
        self.norm_attention = nn.LayerNorm(layout.hidden)
        self.query_key_value = nn.Linear(layout.hidden, 3 * width)
        self.attention_out = nn.Linear(width, layout.hidden)
        self.norm_ffn = nn.LayerNorm(layout.hidden)
        self.ffn_in = nn.Linear(layout.hidden, layout.ffn // shrink)
        self.ffn_out = nn.Linear(layout.ffn // shrink, layout.hidden)
        # Teachers that normalise last, as BERT does, stretch and shift each feature.
        self.scale = nn.Parameter(torch.ones(layout.hidden))
        self.shift = nn.Parameter(torch.zeros(layout.hidden))
        for linear in (self.attention_out, self.ffn_out):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden states after the layer.

        Args:
            x: float32 [batch, tokens, hidden].
            mask: bool [batch, tokens], which tokens are text; attention ignores the others.
        """
        query, key, value = (
            self.query_key_value(self.norm_attention(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        visible = mask[:, None, None, :]
        if self.causal:
            visible = visible & torch.ones(2 * x.shape[1:2], dtype=torch.bool, device=x.device).tril()
        seen = F.scaled_dot_product_attention(_rotate(query), _rotate(key), value, attn_mask=visible)
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        x = x + self.ffn_out(F.gelu(self.ffn_in(self.norm_ffn(x))))
        return x * self.scale + self.shift


def _rotate(heads: Tensor) -> Tensor:
    """Rotate queries or keys by the positions of their tokens.

    Args:
        heads: float32 [batch, heads, tokens, width].

    Source: rotary position embedding, Su et al., RoFormer, arXiv:2104.09864, section 3.4.2.
    """
    tokens, half = heads.shape[-2], heads.shape[-1] // 2
    places = torch.arange(tokens, device=heads.device, dtype=torch.float32)
    angles = torch.outer(places, 10_000.0 ** (-torch.arange(half, device=heads.device) / half))
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
        rest,
    )
    return torch.cat(turned, dim=-1)


def squared_error(predicted: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the summed squares of the error and of the target, over the tokens that are text; two scalars."""
    target = batch["y"].float()
    mask = batch["mask"][..., None]
    return ((predicted - target) * mask).square().sum(), (target * mask).square().sum()


@torch.inference_mode()
def relative_error(layer: nn.Module, batches: list[Batch]) -> float:
    """Return ‖layer(x) - y‖ / ‖y‖ over the batches of all ranks."""
    sums = torch.zeros(2, device=batches[0]["x"].device)
    for batch in batches:
        sums += torch.stack(squared_error(layer(batch["x"].float(), batch["mask"]), batch))
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float((sums[0] / sums[1]).sqrt())


class Trainer:
    """Trains one student layer after the other.

    Args:
        settings: `cfg.train` of distill_llm.yaml.
        shrink: see `StudentLayer`.
        seed: of the run.
        layout: that of the teacher.
        device: where the student is trained.
        switch: makes all ranks begin with a layer; gets its number, the name of the texts, and how many samples of
            them to skip.
        batches: endless; begins anew after each switch.
        checkpoint: where training begins, and where its results go.
        progress: opens a progress bar for (layer, batches done); it gets the result after each batch.
    """

    def __init__(
        self,
        settings: Any,
        shrink: int,
        seed: int,
        layout: Layout,
        device: torch.device,
        switch: Callable[[int, str, int], None],
        batches: Iterator[Batch],
        checkpoint: Checkpoint,
        progress: Callable[[int, int], AbstractContextManager[Callable[[LayerResult], None]]],
    ) -> None:
        self.settings = settings
        self.shrink = shrink
        self.seed = seed
        self.layout = layout
        self.device = device
        self.switch = switch
        self.batches = batches
        self.checkpoint = checkpoint
        self.progress = progress

    def train_layer(self) -> None:
        """Train the layer that the checkpoint stands at, to its end."""
        settings, checkpoint = self.settings, self.checkpoint
        number, done = checkpoint.layer, checkpoint.batches_done
        torch.manual_seed(self.seed + number)
        layer = StudentLayer(self.layout, self.shrink).to(self.device)
        optimizer = torch.optim.AdamW(layer.parameters(), weight_decay=0.0)
        self.switch(number, "held_out", 0)
        held_out, rate = self._held_out()
        # Before the error is computed: the workers make what is trained on first meanwhile.
        self.switch(number, "train", done * settings.batch_size)
        if done == 0:
            checkpoint.results.append(LayerResult(error_before=relative_error(layer, held_out)))
        else:
            checkpoint.restore(layer, optimizer)
        result = checkpoint.results[-1]
        result.teacher_rate = rate
        model: nn.Module = layer
        if dist.is_initialized():
            model = DistributedDataParallel(layer)

        with self.progress(number, done) as show:
            clock = time.perf_counter()
            for step in range(done, settings.batches):
                batch = self._next_batch()
                fetched = time.perf_counter()
                self._set_learning_rate(optimizer, step)
                result.losses.append(self._train_step(model, optimizer, batch))
                trained = time.perf_counter()
                result.add(settings.batch_size, waiting_s=fetched - clock, training_s=trained - fetched)
                show(result)
                if (step + 1) % settings.checkpoint_every == 0 and step + 1 < settings.batches:
                    checkpoint.save(step + 1, layer, optimizer)
                clock = time.perf_counter()
        result.error_after = relative_error(layer, held_out)
        checkpoint.finish_layer(layer)

    def _held_out(self) -> tuple[list[Batch], float]:
        """Take the batches that are held out; also returns the samples per second that the teachers made alone."""
        count = self.settings.held_out_batches
        batches = [self._next_batch()]  # not timed: the workers have just switched
        start = time.perf_counter()
        batches += [self._next_batch() for _ in range(count - 1)]
        elapsed = time.perf_counter() - start
        return batches, (count - 1) * self.settings.batch_size / elapsed

    def _next_batch(self) -> Batch:
        return {name: tensor.to(self.device) for name, tensor in next(self.batches).items()}

    def _train_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
        """Take the steps of one batch; returns the relative squared error before the first."""
        x, losses = batch["x"].float(), []
        for _ in range(self.settings.passes):
            error, size = squared_error(model(x, batch["mask"]), batch)
            loss = error / size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[0]

    def _set_learning_rate(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        total = self.settings.batches
        rise = min(1.0, (step + 1) / (WARM_UP * total))
        for group in optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rise * (1 - step / total)


def device_of_rank() -> torch.device:
    """Return the GPU of this process's local rank under torchrun, or the processor where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
