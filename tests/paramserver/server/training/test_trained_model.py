"""Files of the trained model, and the best of its evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from raw_client import job_of, small_model
from torch import nn

from softs_fast.errors import ConfigError, DamagedError
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.training.evaluation import Evaluation
from softs_fast.paramserver.server.training.model_file import read_model, write_model
from softs_fast.paramserver.server.training.trainer import Trainer


def test_lower_may_be_better(tmp_path: Path) -> None:
    results = iter([2.0, 1.0, float("nan"), 3.0])
    trainer = Trainer(job_of(evaluate=lambda module: next(results)))
    options = ServerOptions(
        output=tmp_path / "o.pth", lower_is_better=True, evaluate_every=2, stop_after_evaluations=2
    )
    evaluation = Evaluation(options)
    assert [evaluation.is_due(number) for number in (1, 2, 3, 4)] == [False, True, False, True]
    for number in range(4):
        evaluation.evaluate(Version(1, number), trainer)
    assert evaluation.best == (1.0, 2)
    assert evaluation.is_enough


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = Trainer(job_of())
    options = ServerOptions(output=tmp_path / "o.safetensors")
    assert "version 1.3" in Evaluation(options).finish(Version(1, 3), trainer)
    loaded = load_file(tmp_path / "o.safetensors")
    small_model().load_state_dict(loaded)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_flipped_bit_of_the_trained_model_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"o.{suffix}"
    module = nn.Linear(64, 64)
    write_model(path, module)
    for name, one in read_model(path).items():
        assert torch.equal(one, module.state_dict()[name])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=str(path)):
        read_model(path)


def test_no_altered_byte_of_a_trained_model_gives_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "o.pth"
    module = nn.Linear(2, 1)
    write_model(path, module)
    data = path.read_bytes()
    n_read = 0
    for at in (*range(64), *range(len(data) - 256, len(data))):
        altered = bytearray(data)
        altered[at] ^= 128
        path.write_bytes(altered)
        try:
            found = read_model(path)
        except ConfigError:
            continue
        n_read += 1
        assert all(torch.equal(found[name], one) for name, one in module.state_dict().items())
    assert n_read < 160, "dates and other unused fields"
    path.write_bytes(data[:-1])
    with pytest.raises(ConfigError):
        read_model(path)


def test_a_file_of_weights_from_elsewhere_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert read_model(path)["w"].tolist() == [1.0, 1.0]
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is no file of weights"):
        read_model(path)
