"""The parts of the layer-by-layer example: its text, its teacher, its student layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_checkpoint import Checkpoint
from llm_student import StudentLayer, relative_error
from llm_teacher import Layout, Teacher, find_model, read_layout
from llm_text import Corpus, load_corpus

N_TOKENS = 48
MODEL_CFG = {"seed": 1, "held_out": 2, "first": 0}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def test_corpus_is_english_and_splits_cleanly(corpus: Corpus) -> None:
    assert len(corpus.train) > 1000
    assert len(corpus.held_out) > 100
    assert not any(">>>" in sentence or "\n" in sentence for sentence in corpus.train)
    assert all(sentence[0].isupper() and sentence[-1] in ".!?" for sentence in corpus.train)
    assert not set(corpus.train) & set(corpus.held_out)
    assert corpus == load_corpus()


def test_passages_depend_on_all_that_names_them(corpus: Corpus) -> None:
    def passage(**changed: Any) -> str:
        return corpus.passage(
            **{"seed": 0, "rank": 0, "number": 5, "n_words": 30, "held_out": False, **changed}
        )

    assert passage() == passage()
    lengths = [passage(number=number).count(" ") + 1 for number in range(50)]
    assert min(lengths) >= 15
    assert len(set(lengths)) > 10
    others = [passage(seed=1), passage(rank=1), passage(number=6), passage(held_out=True)]
    assert len({passage(), *others}) == 5
    held_out = passage(held_out=True)
    assert any(held_out.startswith(sentence) for sentence in corpus.held_out)


@pytest.fixture(scope="module")
def default_teacher(corpus: Corpus) -> Teacher:
    name = find_model(None)
    return Teacher(name, read_layout(name, N_TOKENS), "cpu", corpus)


def test_layout_comes_from_the_models_configuration() -> None:
    layout = read_layout(find_model(None), None)
    assert layout == Layout(
        layers="encoder.layer", n_layers=6, hidden=384, heads=12, ffn=1536, n_tokens=512, causal=False
    )
    sample = layout.sample()
    assert [(spec.name, spec.shape, spec.dtype) for spec in sample.specs] == [
        ("x", (512, 384), "bfloat16"),
        ("y", (512, 384), "bfloat16"),
        ("mask", (512,), "bool"),
    ]


@pytest.mark.parametrize("layer", [0, 3])
def test_samples_are_what_the_layer_takes_and_returns(
    default_teacher: Teacher, corpus: Corpus, layer: int
) -> None:
    samples = default_teacher("a layer", {**MODEL_CFG, "layer": layer}, 8, tuple(range(8)), 0)
    texts = [corpus.passage(1, 0, number, N_TOKENS, held_out=number < 2) for number in range(8)]
    states, mask = hidden_states(find_model(None), texts)
    assert torch.equal(samples["mask"], mask)
    assert not mask.all()  # some are shorter than the others
    assert samples["x"].dtype == samples["y"].dtype == torch.bfloat16
    torch.testing.assert_close(samples["x"].float(), states[layer], rtol=0.01, atol=0.01)
    torch.testing.assert_close(samples["y"].float(), states[layer + 1], rtol=0.01, atol=0.01)


def test_stream_goes_on_where_it_is_told(default_teacher: Teacher) -> None:
    def samples(first: int, *sequences: int, rank: int = 0) -> torch.Tensor:
        cfg = {**MODEL_CFG, "layer": 0, "first": first}
        return default_teacher("a layer", cfg, len(sequences), sequences, rank)["x"]

    whole = samples(0, *range(6))
    # Two samples are held out; of the others, the first two are skipped.
    assert torch.equal(samples(2, 0, 1, 2, 3), whole[[0, 1, 4, 5]])
    assert torch.equal(samples(0, 4), whole[4:5])
    assert not torch.equal(samples(0, *range(6), rank=1)[2], whole[2])


def test_teacher_may_be_a_causal_model_from_a_folder(tmp_path: Path, corpus: Corpus) -> None:
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
    assert layout == Layout(layers="layers", n_layers=3, hidden=32, heads=4, ffn=48, n_tokens=64, causal=True)
    teacher = Teacher(str(tmp_path), layout, "cpu", corpus)
    samples = teacher("a layer", {**MODEL_CFG, "layer": 1}, 1, (7,), 0)
    states, _ = hidden_states(str(tmp_path), [corpus.passage(1, 0, 7, 64, held_out=False)], 64)
    torch.testing.assert_close(samples["x"].float(), states[1], rtol=0.01, atol=0.01)
    torch.testing.assert_close(samples["y"].float(), states[2], rtol=0.01, atol=0.01)


def test_model_without_a_single_list_of_layers_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
    config.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(find_model(None)).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"need one list of 2 layers, have \['encoder.block', 'decoder.block'\]"
    ):
        read_layout(str(tmp_path), None)


@pytest.mark.parametrize("causal", [False, True])
def test_student_sees_text_only_and_knows_places(causal: bool) -> None:
    layout = Layout("layers", n_layers=1, hidden=16, heads=4, ffn=32, n_tokens=6, causal=causal)
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
    layout = Layout("layers", n_layers=1, hidden=4, heads=2, ffn=4, n_tokens=2, causal=False)
    assert relative_error(StudentLayer(layout, 1), [batch]) == pytest.approx(0.5)
    batch["y"][0, 1] = 100
    assert relative_error(StudentLayer(layout, 1), [batch]) == pytest.approx(0.5)


def test_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(FileNotFoundError, match="start without resume=true"):
        Checkpoint(path, {"seed": 1}).load(path)
    layer = torch.nn.Linear(2, 2)
    Checkpoint(path, {"seed": 1, "shrink": 2}).finish_layer(layer)
    Checkpoint(path, {"seed": 1, "shrink": 2}).load(path)
    with pytest.raises(ValueError, match="other settings of seed"):
        Checkpoint(path, {"seed": 2, "shrink": 2}).load(path)


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
