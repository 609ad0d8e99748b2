"""The student's layer of distill_llm.py: smaller than the teacher's, trained on what that takes and returns."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from llm_teacher import Layout

Batch = dict[str, Tensor]


class StudentLayer(nn.Module):
    """A layer of a transformer with fewer heads and a narrower feed-forward part than its teacher's.

    Before training it returns what it is given, so its error is that of leaving the layer out.

    Args:
        layout: Layout of the teacher.
        shrink: Heads and feed-forward width are the teacher's, divided by this.
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
        qkv = self.query_key_value(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        visible = mask[:, None, None, :]
        if self.causal:
            visible = visible & torch.ones(2 * x.shape[1:2], dtype=torch.bool, device=x.device).tril()
        seen = F.scaled_dot_product_attention(_rotate(query), _rotate(key), value, attn_mask=visible)
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        x = x + self.ffn_out(F.gelu(self.ffn_in(self.norm_ffn(x))))
        return x * self.scale + self.shift


def _rotate(heads: Tensor) -> Tensor:
    """Rotate queries or keys, float32 [batch, heads, tokens, width], by the positions of their tokens.

    Source: rotary position embedding, Su et al., RoFormer, arXiv:2104.09864, section 3.4.2.
    """
    tokens, half = heads.shape[-2], heads.shape[-1] // 2
    places = torch.arange(tokens, device=heads.device, dtype=torch.float32)
    angles = torch.outer(places, 10_000.0 ** (-torch.arange(half, device=heads.device) / half))
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def squared_error(predicted: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the summed squares of the error and of the target, over the tokens that are text; two scalars."""
    target, mask = batch["y"].float(), batch["mask"][..., None]
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
