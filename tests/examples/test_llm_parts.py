"""The parts of the layer-by-layer example: its text, its teacher, its student layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from distill_llm import open_state, save_state
from llm_report import LayerResult, LoaderStats
from llm_student import StudentLayer, relative_error
from llm_teacher import Layout, find_model, make_teacher, read_layout
from llm_text import Passages, load_passages
from softs_fast import ConfigError

N_TOKENS = 48
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def passages() -> dict[str, Passages]:
    return load_passages(30)


def test_corpus_is_english_and_splits_cleanly(passages: dict[str, Passages]) -> None:
    train, held_out = passages["train"].sentences, passages["held_out"].sentences
    assert len(train) > 1000
    assert len(held_out) > 100
    assert not any(">>>" in sentence or "\n" in sentence for sentence in train)
    assert all(sentence[0].isupper() and sentence[-1] in ".!?" for sentence in train)
    assert not set(train) & set(held_out)
    assert passages == load_passages(30)


def test_a_passage_begins_at_each_sentence(passages: dict[str, Passages]) -> None:
    train = passages["train"]
    assert len(train) == len(train.sentences)
    assert all(train[i].startswith(train.sentences[i]) for i in (0, 5, len(train) - 1))
    assert train[len(train) - 1].startswith(f"{train.sentences[-1]} {train.sentences[0]}"[:40])
    lengths = [train[i].count(" ") + 1 for i in range(50)]
    assert min(lengths) >= 15
    assert len(set(lengths)) > 10
    assert train[7] == load_passages(30)["train"][7]


def samples_of(
    name: str, layout: Layout, layer: int, n: int, **chosen: Any
) -> tuple[dict[str, Any], list[str]]:
    """The first samples of a layer as a worker makes them, and the texts that they are of."""
    teacher = make_teacher(name, layout, seed=1)
    maker = teacher._load()
    samples: dict[str, Any] = maker.for_model("a layer", {"layer": layer, **chosen}, n, tuple(range(n)), 0)
    assert list(samples) == teacher.batch_config.tensor_names == ["x", "y", "mask"]
    texts = load_passages(layout.n_tokens)[chosen.get("texts", "train")]
    first = chosen.get("first", 0)
    return samples, [texts[teacher._order.index(first + i, 0, len(texts))] for i in range(n)]


def test_layout_comes_from_the_models_configuration() -> None:
    layout = read_layout(find_model(None), None)
    assert layout == Layout(n_layers=6, hidden=384, heads=12, ffn=1536, n_tokens=512, causal=False)
    sample = make_teacher(find_model(None), layout, seed=0).batch_config
    assert [(spec.name, spec.shape, spec.dtype) for spec in sample.specs] == [
        ("x", (512, 384), "bfloat16"),
        ("y", (512, 384), "bfloat16"),
        ("mask", (512,), "bool"),
    ]


@pytest.mark.parametrize(("layer", "chosen"), [(0, {"texts": "held_out"}), (3, {"first": 5})])
def test_samples_are_what_the_layer_takes_and_returns(layer: int, chosen: dict[str, Any]) -> None:
    name = find_model(None)
    samples, texts = samples_of(name, read_layout(name, N_TOKENS), layer, 16, **chosen)
    states, mask = hidden_states(name, texts)
    assert torch.equal(samples["mask"], mask)
    assert not mask.all()  # some are shorter than the others
    torch.testing.assert_close(samples["x"].float(), states[layer], rtol=0.01, atol=0.01)
    torch.testing.assert_close(samples["y"].float(), states[layer + 1], rtol=0.01, atol=0.01)


def test_teacher_may_be_a_causal_model_from_a_folder(tmp_path: Path) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=30522,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(find_model(None)).save_pretrained(tmp_path)

    layout = read_layout(str(tmp_path), None)
    assert layout == Layout(n_layers=3, hidden=32, heads=4, ffn=48, n_tokens=64, causal=True)
    samples, texts = samples_of(str(tmp_path), layout, 1, 1)
    states, _ = hidden_states(str(tmp_path), texts, 64)
    torch.testing.assert_close(samples["x"].float(), states[1], rtol=0.01, atol=0.01)
    torch.testing.assert_close(samples["y"].float(), states[2], rtol=0.01, atol=0.01)


def test_model_without_a_single_list_of_layers_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
    config.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(find_model(None)).save_pretrained(tmp_path)
    layout = Layout(n_layers=2, hidden=8, heads=2, ffn=8, n_tokens=16, causal=False)
    with pytest.raises(
        ConfigError, match=r"needs one list of 2 layers, has \['encoder.block', 'decoder.block'\]"
    ):
        make_teacher(str(tmp_path), layout, seed=0)


@pytest.mark.parametrize("causal", [False, True])
def test_student_sees_text_only_and_knows_places(causal: bool) -> None:
    layout = Layout(n_layers=1, hidden=16, heads=4, ffn=32, n_tokens=6, causal=causal)
    torch.manual_seed(0)
    layer = StudentLayer(layout, shrink=2)
    x = torch.randn(2, 6, 16)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4:] = False
    assert torch.equal(layer(x, mask), x)  # before training: what leaving the layer out would be
    trained(layer)

    def same(changed: torch.Tensor, token: int) -> bool:
        return torch.allclose(layer(changed, mask)[:, token], layer(x, mask)[:, token], atol=1e-6)

    padding, future, swapped = x.clone(), x.clone(), x[:, [1, 0, 2, 3, 4, 5]]
    padding[:, 4:] = 9
    future[:, 3] = 9
    assert same(padding, 2)
    assert same(future, 2) == causal
    assert not same(swapped, 2)


def test_relative_error_ignores_padding() -> None:
    batch = {
        "x": torch.ones(1, 2, 4).bfloat16(),
        "y": torch.full((1, 2, 4), 2.0).bfloat16(),
        "mask": torch.tensor([[True, False]]),
    }
    layout = Layout(n_layers=1, hidden=4, heads=2, ffn=4, n_tokens=2, causal=False)
    assert relative_error(StudentLayer(layout, 1), [batch]) == pytest.approx(0.5)
    batch["y"][0, 1] = 100
    assert relative_error(StudentLayer(layout, 1), [batch]) == pytest.approx(0.5)


def test_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    def settings(seed: int, resume: bool) -> Any:
        return OmegaConf.create(
            {
                "output_dir": str(tmp_path),
                "resume": resume,
                "seed": seed,
                "train": {"batches": 3},
                "teacher": {"layers": 2},
                "student": {"shrink": 2},
            }
        )

    with pytest.raises(FileNotFoundError, match="start without resume=true"):
        open_state(settings(1, True), 1)
    begun = open_state(settings(1, False), 1)
    result = LayerResult(error_before=0.5, teacher_rate=9.0, stats=LoaderStats(1, 2, 3.0, 4.0), losses=[0.5])
    save_state(settings(1, False), {**begun, "results": [result]})
    assert open_state(settings(1, True), 1)["results"] == [result]
    with pytest.raises(ValueError, match="other settings of seed, ranks"):
        open_state(settings(2, True), 2)


def hidden_states(
    name: str, texts: list[str], n_tokens: int = N_TOKENS
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """What the whole model computes for texts, layer by layer, and which tokens are text."""
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(name)(
        texts, truncation=True, max_length=n_tokens, padding="max_length", return_tensors="pt"
    )
    model = transformers.AutoModel.from_pretrained(name).eval()
    with torch.inference_mode():
        output = model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], output_hidden_states=True
        )
    return output.hidden_states, tokens["attention_mask"].bool()


def trained(layer: Callable[..., Any]) -> None:
    """Give a layer weights that let each part count."""
    assert isinstance(layer, torch.nn.Module)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
