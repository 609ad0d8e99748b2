"""What a causal teacher sends is what its model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EOS, HIDDEN, N_LAYERS, TEXTS, VOCABULARY, Counting

from softs_fast import ConfigError
from softs_fast.codecs import TopK, TopKLogits, topk_logits
from softs_fast.teachers import CausalLMTeacher, Output, forward

LENGTH = 8


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(llama).eval()


def make(teacher: CausalLMTeacher, n: int = 5, **model_cfg: Any) -> dict[str, Any]:
    made = teacher._load().for_model("m", model_cfg, n, tuple(range(n)), 0)
    assert teacher.batch_config.tensor_names == list(made)
    return made


def direct(model: Any, made: dict[str, Any], **options: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=made["ids"], attention_mask=made["mask"].long(), **options)


@pytest.mark.parametrize("packed", [True, False])
def test_logits_are_those_of_the_model(llama: Path, model: Any, packed: bool) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, ["logits", "ids", "mask"], packed=packed)
    assert teacher.batch_config.get_spec("logits").shape == (LENGTH, VOCABULARY)
    made = make(teacher)
    expected = direct(model, made).logits
    assert made["mask"].all() == packed
    torch.testing.assert_close(made["logits"][made["mask"]], expected[made["mask"]])


@pytest.mark.parametrize("n_elements", [1, 2 * LENGTH * VOCABULARY, forward._MAX_ELEMENTS])
def test_the_largest_logits_and_the_sum_of_all(
    llama: Path, model: Any, monkeypatch: pytest.MonkeyPatch, n_elements: int
) -> None:
    monkeypatch.setattr(forward, "_MAX_ELEMENTS", n_elements)
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, {"logits": TopK(4), "ids": None, "mask": None})
    made = make(teacher)
    top = made["logits"]
    assert isinstance(top, TopKLogits)
    expected = topk_logits(direct(model, made).logits, 4)
    torch.testing.assert_close(top.values, expected.values)
    torch.testing.assert_close(top.lse, expected.lse)
    assert torch.equal(top.indices, expected.indices)

    sent = [bytearray(teacher.batch_config.nbytes()) for _ in range(5)]
    teacher.batch_config.encode_batch_into(made, sent)
    received = teacher.batch_config.decode_batch(sent)["logits"]
    assert all(torch.equal(*parts) for parts in zip(received, top, strict=True))


@pytest.mark.parametrize("layer", range(N_LAYERS + 1))
def test_hidden_states_are_those_of_the_model(llama: Path, model: Any, layer: int) -> None:
    teacher = CausalLMTeacher(
        llama, TEXTS, LENGTH, [f"hidden.{layer}", "outputs[model.norm]", "ids", "mask"], packed=False
    )
    assert teacher.batch_config.get_spec(f"hidden.{layer}").shape == (LENGTH, HIDDEN)
    made = make(teacher)
    states = direct(model, made, output_hidden_states=True).hidden_states
    mask = made["mask"]
    state = made[f"hidden.{layer}"]
    if layer == N_LAYERS:  # transformers hands out the last one after the norm
        state = model.model.norm(state)
    torch.testing.assert_close(state[mask], states[layer][mask])
    torch.testing.assert_close(made["outputs[model.norm]"][mask], states[-1][mask])


@pytest.mark.parametrize("layer", range(N_LAYERS))
def test_a_layer_is_chosen_by_model_cfg(llama: Path, model: Any, layer: int) -> None:
    outputs = {
        "x": Output("layer.input", dtype="bfloat16"),
        "y": Output("layer.output"),
        "ids": None,
        "mask": None,
    }
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, outputs)
    assert teacher.batch_config.get_spec("x").dtype == "bfloat16"
    made = make(teacher, layer=layer)
    recorded: dict[str, torch.Tensor] = {}
    hook = model.model.layers[layer].register_forward_hook(
        lambda module, args, output: recorded.update(x=args[0], y=output)
    )
    direct(model, made)
    hook.remove()
    torch.testing.assert_close(made["x"], recorded["x"].bfloat16())
    torch.testing.assert_close(made["y"], recorded["y"])


@pytest.mark.parametrize("cfg", [{}, {"layer": 2}, {"layer": -1}, {"layer": "1"}, {"layer": True}])
def test_a_layer_that_does_not_exist_is_refused(llama: Path, cfg: dict[str, Any]) -> None:
    maker = CausalLMTeacher(llama, TEXTS, LENGTH, "layer.output")._load()
    with pytest.raises(ConfigError, match=r'need model_cfg=\{"layer": 0 to 1\}, got '):
        maker.for_model("m", cfg or None, 1, (0,), 0)


def test_inputs_and_outputs_of_modules(llama: Path, model: Any) -> None:
    path = "model.layers.1.mlp.down_proj"
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, [f"inputs[{path}]", f"outputs[ {path} ]", "ids", "mask"])
    made = make(teacher)
    assert teacher.batch_config.get_spec(f"inputs[{path}]").shape == (LENGTH, 24)
    expected = model.model.layers[1].mlp.down_proj(made[f"inputs[{path}]"])
    torch.testing.assert_close(made[f"outputs[ {path} ]"], expected)


@pytest.mark.parametrize(
    ("outputs", "called", "skipped"),
    [
        (["hidden.0"], "model.embed_tokens", "model.layers.0.self_attn"),
        (["hidden.1"], "model.layers.0", "model.layers.1"),
        (["hidden.2"], "model.layers.1", "model.norm"),
        (
            ["hidden.1", "inputs[model.layers.1.mlp]"],
            "model.layers.1.self_attn",
            "model.layers.1.mlp.up_proj",
        ),
        (["layer.input"], "model.layers.0", "model.layers.1.self_attn"),
        (["hidden.1", "logits"], "lm_head", None),
        (["ids", "mask"], None, ""),
    ],
)
def test_nothing_is_computed_past_what_is_wanted(
    llama: Path, monkeypatch: pytest.MonkeyPatch, outputs: list[str], called: str | None, skipped: str | None
) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, outputs)
    counting = count_calls(teacher, monkeypatch)
    maker = teacher._load()
    maker.for_model("m", {"layer": 1}, 2, (0, 1), 0)
    maker.for_model("m", {"layer": 1}, 2, (2, 3), 0)
    calls = counting[0].calls
    assert called is None or calls[called] == 2
    assert skipped not in calls


def test_dtypes_are_of_the_configuration_or_as_asked(llama: Path) -> None:
    def dtype(**options: Any) -> str:
        return CausalLMTeacher(llama, TEXTS, LENGTH, "hidden.1", **options).batch_config.specs[0].dtype

    assert dtype() == "float32"
    assert dtype(dtype="bfloat16") == dtype(dtype=torch.bfloat16) == "bfloat16"
    teacher = CausalLMTeacher(llama, TEXTS, LENGTH, {"logits": TopK(2)}, dtype="bfloat16")
    assert make(teacher)["logits"].values.dtype == torch.bfloat16


def test_a_model_is_not_told_of_padding_where_there_is_none(llama: Path, model: Any) -> None:
    """EOS pads; the EOS of a text that has one is no padding."""
    teacher = CausalLMTeacher(llama, ["w1 <eos> w2"], 5, ["ids", "mask"], packed=False)
    made = make(teacher, 1)
    assert made["ids"].tolist() == [[4, EOS, 5, EOS, EOS]]
    assert made["mask"].tolist() == [[True, True, True, False, False]]


def count_calls(teacher: CausalLMTeacher, monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    """Count the calls of modules of the models that a teacher loads from now on."""
    found: list[Counting] = []
    weights = type(teacher._model).weights

    def counted(*args: Any) -> Any:
        model = weights(*args)
        found.append(Counting(model))
        return model

    monkeypatch.setattr(type(teacher._model), "weights", counted)
    return found
