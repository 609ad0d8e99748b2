"""What an encoder sends is what its model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FIRST_WORD, HIDDEN, N_LAYERS, PAD, TEXTS, save_tokenizer

from softs_fast import ConfigError
from softs_fast.teachers import EncoderTeacher, Output

LENGTH = 8
NAMES = ["ids", "mask", *(f"hidden.{i}" for i in range(N_LAYERS + 1)), "outputs[pooler]"]


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_states_are_those_of_the_model(bert: Path, dtype: str | None) -> None:
    import transformers

    teacher = EncoderTeacher(bert, TEXTS, LENGTH, NAMES, dtype=dtype)
    made: dict[str, Any] = teacher._load().for_product("p", 6, tuple(range(6)))
    model = transformers.AutoModel.from_pretrained(bert, dtype=dtype or "float32").eval()
    mask = made["mask"]
    with torch.inference_mode():
        expected = model(input_ids=made["ids"], attention_mask=mask.long(), output_hidden_states=True)
    assert not mask.all()
    assert (made["ids"][~mask] == PAD).all()
    for i, states in enumerate(expected.hidden_states):
        torch.testing.assert_close(made[f"hidden.{i}"][mask], states[mask])
    torch.testing.assert_close(made["outputs[pooler]"], expected.pooler_output)
    assert teacher.batch_config.get_spec("outputs[pooler]").shape == (HIDDEN,)
    assert {spec.dtype for spec in teacher.batch_config.specs[2:]} == {dtype or "float32"}


def test_packed_texts_need_an_end(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no EOS and no SEP token .*packed=False"):
        EncoderTeacher(bert, TEXTS, LENGTH, "hidden.1", packed=True)
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_tokenizer(tmp_path, sep_token="<eos>", pad_token="<pad>")
    teacher = EncoderTeacher(tmp_path, ["w1 w2"], 3, "ids", packed=True)
    made: dict[str, Any] = teacher._load().for_product("p", 1, (0,))
    assert made["ids"].tolist() == [[FIRST_WORD + 1, FIRST_WORD + 2, 1]]


def test_an_encoder_has_no_logits(bert: Path) -> None:
    with pytest.raises(ConfigError, match="unknown output 'logits'"):
        EncoderTeacher(bert, TEXTS, LENGTH, "logits")


def test_a_model_without_a_single_list_of_layers_has_modules_only(tmp_path: Path) -> None:
    """ALBERT has one layer for all depths; what it returns first is taken."""
    import transformers

    config = transformers.AlbertConfig(
        vocab_size=64,
        hidden_size=HIDDEN,
        embedding_size=8,
        intermediate_size=24,
        num_attention_heads=2,
        num_hidden_layers=3,
        max_position_embeddings=16,
    )
    model = transformers.AlbertModel(config).eval()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, pad_token="<pad>")
    with pytest.raises(ConfigError, match=r"needs one list of 3 layers, has \[\]; name modules instead"):
        EncoderTeacher(tmp_path, TEXTS, LENGTH, "hidden.1")
    path = "encoder.albert_layer_groups.0.albert_layers.0"
    teacher = EncoderTeacher(
        tmp_path, TEXTS, LENGTH, {"y": Output(f"outputs[{path}]"), "ids": None, "mask": None}
    )
    made: dict[str, Any] = teacher._load().for_product("p", 2, (0, 1))
    with torch.inference_mode():
        states = model(
            input_ids=made["ids"], attention_mask=made["mask"].long(), output_hidden_states=True
        ).hidden_states
    torch.testing.assert_close(made["y"], states[1])
