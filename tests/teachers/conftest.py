"""Folders with tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_models
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models are so small that threads would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model; its tokenizer has an EOS token, and no padding token."""
    return tiny_models.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder; its tokenizer has a padding token, and no EOS token."""
    return tiny_models.save_bert(tmp_path_factory.mktemp("bert"))
