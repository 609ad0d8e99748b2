"""Blocks of packed texts, and padded texts, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import EOS, PAD, TEXTS, tokens_of

from softs_fast import ConfigError, GeneratorFailed
from softs_fast.teachers.tokens import PackedTexts, PaddedTexts


@pytest.fixture(scope="module")
def tokenizer(llama: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(llama)


@pytest.mark.parametrize("length", [1, 4, 7, 100])
def test_blocks_are_the_texts_end_to_end(tokenizer: Any, length: int) -> None:
    corpus = [token for text in TEXTS for token in [*tokens_of(text), EOS]]
    assert len(corpus) == 100
    packed = PackedTexts(tokenizer, TEXTS, length, EOS)
    assert len(packed) == len(corpus) // length
    fields = packed.batch(range(len(packed)))
    assert fields["ids"].flatten().tolist() == corpus[: len(packed) * length]
    assert fields["mask"].all()
    assert fields["mask"].shape == fields["ids"].shape == (len(packed), length)
    assert packed.batch([len(packed) - 1])["ids"].tolist() == fields["ids"][-1:].tolist()


def test_many_texts_are_tokenised_in_chunks(tokenizer: Any) -> None:
    texts = [f"w{i % 60}" for i in range(2500)]
    ids = PackedTexts(tokenizer, texts, 2, EOS).batch(range(2500))["ids"]
    assert ids.tolist() == [[i % 60 + 3, EOS] for i in range(2500)]


def test_texts_shorter_than_a_block_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="the texts have 5 tokens, and a block needs 6"):
        PackedTexts(tokenizer, ["w1 w2", "w3"], 6, EOS)


def test_texts_are_cut_or_padded(tokenizer: Any) -> None:
    fields = PaddedTexts(tokenizer, ["w1", "w1 w2 w3 w4 w5", "w7 w8 w9"], 3, PAD).batch([2, 0, 1])
    assert fields["ids"].tolist() == [[10, 11, 12], [4, PAD, PAD], [4, 5, 6]]
    assert fields["mask"].tolist() == [[True] * 3, [True, False, False], [True] * 3]


def test_a_text_without_tokens_is_named(tokenizer: Any) -> None:
    with pytest.raises(GeneratorFailed, match="text 1 has no tokens: ' '; remove it"):
        PaddedTexts(tokenizer, ["w1", " "], 3, PAD).batch([0, 1])
