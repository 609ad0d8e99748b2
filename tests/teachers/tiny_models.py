"""Models with two layers, 16 features and 64 tokens, a tokenizer of words, and modules, for tests of teachers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 64
HIDDEN = 16
N_LAYERS = 2
POSITIONS = 32
UNKNOWN, EOS, PAD, FIRST_WORD = 0, 1, 2, 3
TEXTS = [f"w{i} " * (1 + i % 5) + "w60" for i in range(20)]


def save_tokenizer(folder: Path, **special: str) -> None:
    """Save a tokenizer: the word wN is token N + 3, and any other token 0."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<eos>", "<pad>", *(f"w{i}" for i in range(VOCABULARY - FIRST_WORD))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def tokens_of(text: str) -> list[int]:
    """What the tokenizer makes of a text."""
    return [int(word[1:]) + FIRST_WORD for word in text.split()]


def save_llama(folder: Path, **special: str) -> Path:
    """Save a causal model; its tokenizer has an EOS token and no padding token unless others are given."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=POSITIONS,
        eos_token_id=EOS,
        bos_token_id=EOS,
        initializer_range=0.5,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, **(special or {"eos_token": "<eos>"}))
    return folder


def save_bert(folder: Path) -> Path:
    """Save an encoder; its tokenizer has a padding token, and no EOS token."""
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=2,
        max_position_embeddings=POSITIONS,
        pad_token_id=PAD,
        initializer_range=0.5,
    )
    transformers.BertModel(config).save_pretrained(folder)
    save_tokenizer(folder, pad_token="<pad>")
    return folder


class Counting:
    """Counts the calls of each module of a model, and the rows of each call of the whole."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[str, int] = {}
        self.rows: list[int] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(functools.partial(self._count, name), with_kwargs=True)

    def _count(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if not name:
            self.rows.append(len([*args, *kwargs.values()][0]))


class Pairs:
    """A collection as of the package datasets: a length, and elements that are mappings."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not isinstance(index, int):
            raise TypeError(f"need one number, got {index!r}")
        return {"text": self.texts[index], "label": index}


class Net(nn.Module):
    """A module with two parts, of which the second changes what the first has returned, and drops out in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 3), nn.Dropout(0.9))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def make_net() -> Net:
    torch.manual_seed(2)
    return Net()


def make_weights() -> nn.Module:
    """A module that cannot be made without its weights."""
    net = make_net()
    float(next(net.parameters()).sum())
    return net


def make_list() -> Any:
    return []


def texts_of_a_generator() -> Iterator[str]:
    yield from TEXTS
