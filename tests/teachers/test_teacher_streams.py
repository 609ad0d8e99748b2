"""A sample is the same from every worker and in every batch; batches go through the model within their budget."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_causal_lm import count_calls
from tiny_models import TEXTS, Pairs

from softs_fast import ConfigError, GeneratorFailed
from softs_fast.codecs import TopK
from softs_fast.teachers import CausalLMTeacher, EncoderTeacher

N_SAMPLES = 30


def sent(
    teacher: CausalLMTeacher, calls: Sequence[Sequence[int]], rank: int = 0, **model_cfg: Any
) -> list[bytes]:
    """The bytes of samples that one worker makes in some calls."""
    maker, rows = teacher._load(), []
    for sequences in calls:
        made = maker.for_model("m", model_cfg, len(sequences), tuple(sequences), rank)
        outs = [bytearray(teacher.batch_config.nbytes()) for _ in sequences]
        teacher.batch_config.encode_batch_into(made, outs)
        rows += map(bytes, outs)
    return rows


@pytest.mark.parametrize("packed", [True, False])
def test_streams_repeat_whichever_worker_and_batch(llama: Path, packed: bool) -> None:
    """To the same bits, as each sample goes through the model alone."""
    teacher = CausalLMTeacher(
        llama, TEXTS, 8, {"ids": None, "logits": TopK(3)}, packed=packed, max_tokens=8, seed=5
    )
    whole = sent(teacher, [range(N_SAMPLES)])
    copied = pickle.loads(pickle.dumps(teacher))
    assert sent(copied, [[i] for i in range(N_SAMPLES)]) == whole
    assert sent(copied, [[7, 3, 22], [29, 0]]) == [whole[i] for i in (7, 3, 22, 29, 0)]
    assert sent(teacher, [range(N_SAMPLES)], rank=1) != whole
    others = CausalLMTeacher(llama, TEXTS, 8, {"ids": None, "logits": TopK(3)}, packed=packed, max_tokens=8)
    assert sent(others, [range(N_SAMPLES)]) != whole


@pytest.mark.parametrize("packed", [True, False])
def test_the_same_texts_make_the_same_samples(llama: Path, tmp_path: Path, packed: bool) -> None:
    """From a list, a file and a column."""
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(TEXTS))
    kinds: list[tuple[Any, dict[str, Any]]] = [(TEXTS, {}), (path, {}), (Pairs(TEXTS), {"column": "text"})]
    streams = [
        sent(CausalLMTeacher(llama, texts, 8, "ids", packed=packed, **options), [range(25)])
        for texts, options in kinds
    ]
    assert streams[0] == streams[1] == streams[2]


def test_a_model_is_found_from_other_folders(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llama.parent)
    teacher = CausalLMTeacher(llama.name, TEXTS, 8, "ids")
    monkeypatch.chdir("/")
    assert len(sent(teacher, [[0]])) == 1


def test_values_are_close_in_batches_of_any_size(llama: Path) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, 8, ["logits"], packed=False)
    maker = teacher._load()
    whole: dict[str, Any] = maker.for_model("m", None, 20, tuple(range(20)), 0)
    for i in (0, 19):
        alone: dict[str, Any] = maker.for_model("m", None, 1, (i,), 0)
        torch.testing.assert_close(alone["logits"][0], whole["logits"][i])


def test_each_pass_has_each_text_once(llama: Path) -> None:
    maker = CausalLMTeacher(llama, TEXTS, 8, ["ids", "mask"], packed=False)._load()
    passes = []
    for start in (0, 20):
        made: dict[str, Any] = maker.for_model("m", None, 20, tuple(range(start, start + 20)), 0)
        passes.append(
            [tuple(row[mask].tolist()) for row, mask in zip(made["ids"], made["mask"], strict=True)]
        )
    assert set(passes[0]) == set(passes[1])
    assert len(set(passes[0])) == 20
    assert passes[0] != passes[1]


def test_the_stream_may_begin_later(llama: Path) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, 8, "ids")
    whole = sent(teacher, [range(12)])
    assert sent(teacher, [range(5)], first=7) == whole[7:]


def test_texts_are_chosen_by_name(llama: Path) -> None:
    texts = {"train": TEXTS, "held_out": ["w50 w51", "w52"]}
    teacher = CausalLMTeacher(llama, texts, 4, "ids", packed=False)
    assert sent(teacher, [range(9)]) == sent(teacher, [range(9)], texts="train")
    held_out = sent(teacher, [range(2)], texts="held_out")
    assert {row[0] for row in held_out} == {53, 55}
    with pytest.raises(ConfigError, match="'held'; did you mean 'held_out'"):
        sent(teacher, [[0]], texts="held")
    with pytest.raises(ConfigError, match=r'model_cfg\["first"\] must be a whole number'):
        sent(teacher, [[0]], first=-1)


@pytest.mark.parametrize(
    ("max_tokens", "rows"), [(8, [1] * 7), (23, [2, 2, 2, 1]), (24, [3, 3, 1]), (10_000, [7])]
)
def test_the_budget_of_tokens_is_kept(
    llama: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int, rows: list[int]
) -> None:
    teacher = CausalLMTeacher(llama, TEXTS, 8, {"logits": TopK(3)}, max_tokens=max_tokens)
    counting = count_calls(teacher, monkeypatch)
    sent(teacher, [range(7)])
    assert counting[0].rows == rows


def test_texts_that_are_not_repeated_end(llama: Path) -> None:
    teacher = EncoderTeacher(llama, TEXTS, 8, "ids", repeat=False)
    maker = teacher._load()
    maker.for_model("m", None, 20, tuple(range(20)), 0)
    with pytest.raises(GeneratorFailed, match=r"used up: one pass has samples 0 to 19, .*; sample 20 was"):
        maker.for_model("m", None, 1, (20,), 0)


def test_a_teacher_is_small_to_send(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(TEXTS * 1000))
    teacher = CausalLMTeacher(llama, path, 8, {"logits": TopK(3)})
    assert teacher.batch_config.nbytes() > 0
    before = pickle.dumps(teacher)
    assert len(before) < 3000
    teacher.worker(max_batch=4, backend_endpoint="ipc://x", control_pub_endpoint="ipc://y").stop()
    assert pickle.dumps(teacher) == before, "weights stay with the worker"
    copied = pickle.loads(before)
    assert copied.batch_config == teacher.batch_config
    assert sent(copied, [range(3)]) == sent(teacher, [range(3)])
