"""Samples of token ids: blocks of a packed corpus, or one padded text each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import ConfigError, GeneratorFailed

__all__ = ["Examples", "PackedTexts", "PaddedTexts"]

#: Texts that are tokenised with one call.
_CHUNK = 1000


class Examples(Protocol):
    """What a model is given, by index; each example has the same shapes."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return some examples, stacked, on the host: {field: dtype [len(indices), *shape]}."""


class PackedTexts:
    """Blocks of tokens of all texts, end to end, with an EOS after each text; what is left at the end is not used.

    All texts are tokenised once, by the constructor; the tokens take 4 bytes each.

    Args:
        tokenizer: Tokenizer of transformers.
        texts: Texts, at least one.
        length: Number of tokens of a block.
        eos_id: Token after each text.

    Raises:
        ConfigError: all texts together are shorter than one block.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], length: int, eos_id: int) -> None:
        tokens = array("i")
        for start in range(0, len(texts), _CHUNK):
            chunk = [texts[i] for i in range(start, min(start + _CHUNK, len(texts)))]
            # Without `verbose`: a warning about texts that are longer than the model takes.
            rows = tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
            for row in rows:
                tokens.extend(row)
                tokens.append(eos_id)
        n_blocks = len(tokens) // length
        if not n_blocks:
            raise ConfigError(
                f"the texts have {len(tokens)} tokens, and a block needs {length}; give more texts, or a smaller length"
            )
        self._blocks = torch.frombuffer(tokens, dtype=torch.int32, count=n_blocks * length).view(-1, length)

    def __len__(self) -> int:
        return len(self._blocks)

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return blocks: ids int64 [n, length], mask bool [n, length], which is True everywhere."""
        ids = self._blocks[list(indices)].long()
        return {"ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}


@dataclass(frozen=True)
class PaddedTexts:
    """One text for each sample, cut or padded on the right; tokenised when it is wanted.

    Args:
        tokenizer: Tokenizer of transformers; its special tokens are added.
        texts: Texts, at least one.
        length: Number of tokens of a sample.
        pad_id: Token for padding.
    """

    tokenizer: Any
    texts: Sequence[str]
    length: int
    pad_id: int

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return texts: ids int64 [n, length], mask bool [n, length], which is False for padding.

        Raises:
            GeneratorFailed: a text has no tokens.
        """
        chosen = [self.texts[i] for i in indices]
        rows = self.tokenizer(chosen, truncation=True, max_length=self.length, verbose=False)["input_ids"]
        ids = torch.full((len(rows), self.length), self.pad_id, dtype=torch.int64, device="cpu")
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(rows):
            if not row:
                raise GeneratorFailed(f"text {indices[i]} has no tokens: {chosen[i]!r}; remove it")
            ids[i, : len(row)] = torch.tensor(row, device="cpu")
            mask[i, : len(row)] = True
        return {"ids": ids, "mask": mask}
