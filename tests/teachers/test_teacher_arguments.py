"""Bad input is refused before anything is loaded, and the error says what to give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import TEXTS, VOCABULARY, Pairs, save_llama, save_tokenizer

from softs_fast import ConfigError
from softs_fast.codecs import TopK
from softs_fast.teachers import CausalLMTeacher, EncoderTeacher, Output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "no-such/model"}, "model 'no-such/model': no configuration .*; give the name of a model"),
        ({"model": "./no-such-model"}, "model './no-such-model': there is no such folder"),
        ({"model": "/models/a/b"}, "model '/models/a/b': there is no such folder"),
        ({"model": 5}, "model must be a name or a folder, got 5"),
        ({"length": 33}, "length must be at most 32, the positions of the model; got 33"),
        ({"length": 0}, "length must be a whole number from 1 on, got 0"),
        ({"length": 8.0}, "length must be a whole number from 1 on, got 8.0"),
        ({"max_tokens": 7}, "max_tokens must be at least length=8, got 7"),
        ({"outputs": "logit"}, "unknown output 'logit'; did you mean 'logits'"),
        ({"outputs": ["hidden.3"]}, r"unknown output 'hidden\.3'; did you mean .*'hidden\.2'"),
        ({"outputs": "something"}, "unknown output 'something'; have 'ids', 'mask', 'logits', 'layer.input'"),
        (
            {"outputs": "outputs[model.layer.0]"},
            r"unknown module in 'outputs\[model\.layer\.0\]': 'model\.layer\.0'; did you mean 'model\.layers\.0'",
        ),
        ({"outputs": "inputs[]"}, "unknown module"),
        ({"outputs": "outputs[model.layers]"}, "the model does not call its module 'model.layers'"),
        ({"outputs": {}}, "outputs are empty"),
        ({"outputs": {"logits": TopK(VOCABULARY + 1)}}, '"logits": topk needs .* k from 1 to 64'),
        ({"outputs": {"h": Output("hidden.1", dtype="float99")}}, "Unsupported dtype: float99"),
        (
            {"outputs": {"h": Output("hidden.1", dtype=torch.float32)}},
            "Unsupported dtype: torch.float32.*give its name as a str, got dtype",
        ),
        ({"texts": {}}, "texts are empty"),
        ({"texts": Pairs(TEXTS), "column": "txt"}, "unknown column 'txt'; did you mean 'text'"),
        ({"device": "tpu"}, "device 'tpu' is none that torch knows"),
        ({"dtype": "int64"}, "dtype must be one of floating-point numbers, got 'int64'"),
        ({"seed": "a"}, "seed must be a whole number from 0 on"),
    ],
)
def test_bad_input_is_refused(llama: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CausalLMTeacher(**{"model": llama, "texts": TEXTS, "length": 8, "outputs": "logits"} | arguments)


def test_a_tokenizer_without_special_tokens_neither_packs_nor_pads(tmp_path: Path) -> None:
    save_llama(tmp_path, unk_token="<unk>")
    with pytest.raises(ConfigError, match=r"no EOS and no SEP token .*; use packed=False"):
        CausalLMTeacher(tmp_path, TEXTS, 8, "logits")
    with pytest.raises(ConfigError, match=r"no padding token, and no EOS token .*; use packed=True"):
        CausalLMTeacher(tmp_path, TEXTS, 8, "logits", packed=False)


def test_a_folder_without_a_tokenizer_is_named(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="no tokenizer that"):
        CausalLMTeacher(tmp_path, TEXTS, 8, "logits")


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    import transformers

    transformers.DistilBertConfig(
        vocab_size=64, dim=16, hidden_dim=24, n_layers=2, n_heads=2
    ).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, eos_token="<eos>")
    with pytest.raises(ConfigError, match="no architecture that AutoModelForCausalLM can read"):
        CausalLMTeacher(tmp_path, TEXTS, 8, "logits")


def test_an_encoder_with_a_decoder_cannot_be_run_without_being_told_more(tmp_path: Path) -> None:
    import transformers

    transformers.T5Config(
        vocab_size=64, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2
    ).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, eos_token="<eos>")
    with pytest.raises(ConfigError, match="shapes cannot be found: the model does not run without weights"):
        EncoderTeacher(tmp_path, TEXTS, 8, "outputs[decoder.block.0]")


def test_weights_that_are_missing_are_an_error_of_the_worker(llama: Path, tmp_path: Path) -> None:
    for file in llama.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    teacher = CausalLMTeacher(tmp_path, TEXTS, 8, "logits")
    with pytest.raises(ConfigError, match="no weights that AutoModelForCausalLM can read"):
        teacher.worker()


def test_texts_that_are_too_short_are_an_error_of_the_worker(llama: Path) -> None:
    with pytest.raises(ConfigError, match="the texts have 3 tokens, and a block needs 8"):
        CausalLMTeacher(llama, ["w1 w2"], 8, "logits").worker()


@pytest.mark.skipif(torch.cuda.device_count() > 99, reason="there are as many devices")
def test_a_device_that_is_not_there_is_an_error_of_the_worker(llama: Path) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, 8, "logits", device="cuda:99")
    with pytest.raises(
        ConfigError, match=r"device 'cuda:99' is not visible here: torch sees \d+ CUDA devices"
    ):
        teacher.worker()


def test_a_supplier_has_no_layer_to_choose(llama: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"outputs \['layer.output'\] are of the layer that model_cfg names"
    ):
        CausalLMTeacher(llama, TEXTS, 8, ["ids", "layer.output"]).supplier("p")


def test_transformers_is_imported_only_for_its_models() -> None:
    program = """
import sys
sys.modules["transformers"] = None
import torch
from softs_fast.teachers import CausalLMTeacher, TorchTeacher
TorchTeacher(torch.nn.Identity, [torch.ones(2)], "output")
try:
    CausalLMTeacher("gpt2", ["a"], 8, "logits")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "models of Hugging Face need transformers: pip install 'softs-fast[transformers]'\n"
