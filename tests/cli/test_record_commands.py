"""``softs-fast record`` and ``softs-fast replay``."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from served import served
from shell import Command, Run
from waiting import eventually

import softs_fast as sf
from softs_fast.cli.record import _batch_size
from softs_fast.record import Recorder, Recording

CONFIG = sf.BatchConfig([sf.TensorSpec("x", (2,), "float32"), sf.TensorSpec("n", (3,), "int32", ragged=True)])


def generate(product_id: str, sequence: int) -> dict[str, Any]:
    odd = float("nan") if sequence == 7 else 1.0
    return {"x": torch.tensor([float(sequence), odd]), "n": torch.arange(sequence % 4, dtype=torch.int32)}


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    """A file of the config; JSON is YAML."""
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG.to_dict()))
    return str(tmp_path / "config.yaml")


def test_so_many_samples_are_recorded_and_one_is_shown(
    frontend: str, backend: str, tmp_path: Path, config_file: str, run: Run
) -> None:
    folder = str(tmp_path / "epoch")
    record = ("record", "a.b", folder, "--config", config_file, "--frontend", frontend, "--samples")
    with served(frontend, backend, generate, ["a.b"], batch_config=CONFIG):
        assert run(*record, "30") == (0, f"recording a.b into {folder} from number 0 on\n", "")
        assert run(*record, "7") == (0, f"recording a.b into {folder} from number 30 on\n", "")
    with Recording(folder, verify=True) as recording:
        assert recording.span == range(37)
        assert recording.batch(range(37))["x"][:, 0].tolist() == list(range(37))
    status, out, errors = run("replay", folder, "--sequence", "7", "--verify")
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"sample 7 of a.b: row 7 of {folder}/shard-000000.safetensors"
    assert lines[1].startswith("recorded by rank 0 on ")
    assert lines[2].startswith("  x: float32 [2], 1 not finite, blake2b ")
    assert lines[3].startswith("  n.values: int32 [3], blake2b ")
    assert run("replay", f"file://{folder}", "--sequence", "7")[1].splitlines()[1:] == lines[1:]
    tars = str(tmp_path / "tars")
    assert run("replay", folder, "--to-webdataset", tars) == (
        0,
        f"wrote 37 samples to {tars}\n",
        "",
    )
    status, out, errors = run("replay", folder, "--sequence", "37")
    assert (status, out) == (1, "")
    assert "has no sample 37: it has the numbers 0 to 36" in errors
    status, out, errors = run("replay", str(tmp_path))
    assert (status, out) == (1, "")
    assert (
        errors == f"softs-fast: {tmp_path} is not a recording: it has no stream.json; give another folder\n"
    )
    status, _, errors = run("record", "p", folder, "--config", str(tmp_path / "none"))
    assert status == 1
    assert "cannot read the config" in errors


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"specs: [a", "cannot read the config .* while parsing a flow sequence"),
        (b"specs:\n\t- x", "cannot read the config .* cannot start any token"),
        (b"\xff\xfe\xfa", "cannot read the config .* 'utf-8' codec can't decode"),
        (b"specs: []", 'has no tensors, so there is nothing to record: list them as "specs"'),
    ],
)
def test_configs_that_cannot_be(tmp_path: Path, run: Run, content: bytes, text: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    status, out, errors = run("record", "p", str(tmp_path / "e"), "--config", str(tmp_path / "config.yaml"))
    assert (status, out) == (1, "")
    assert re.search(text, errors)
    assert errors.count("\n") == 1


def test_samples_without_elements_come_in_batches() -> None:
    assert _batch_size(0, None) == 256
    assert _batch_size(0, 10) == 10


def test_recordings_that_cannot_be_read(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "stream.json").symlink_to("stream.json")
    for name, text in (
        ("file", "is not a recording"),
        ("loop", "cannot read the recording .* Too many levels of symbolic links"),
        ("links", "cannot read the recording .* Too many levels of symbolic links"),
    ):
        status, out, errors = run("replay", str(tmp_path / name), "--sequence", "1")
        assert (status, out) == (1, "")
        assert re.search(text, errors)


def test_a_recording_that_began_at_a_time_without_a_date(tmp_path: Path, run: Run) -> None:
    options = sf.RecordOptions(tmp_path)
    Recorder(options, "p", CONFIG, ordered=True).close()
    path = tmp_path / "stream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"began_s": 1e300}))
    status, out, errors = run("replay", str(tmp_path), "--sequence", "0")
    assert (status, out) == (1, "")
    assert re.search(r"stream.json is damaged: .*began_s", errors)


@pytest.mark.full
def test_until_a_signal_comes(
    frontend: str, backend: str, tmp_path: Path, config_file: str, command: Command
) -> None:
    folder = tmp_path / "epoch"
    with sf.Broker(sf.EndpointConfig(frontend, backend)):
        with sf.Supplier(generate, ["p"], backend, batch_config=CONFIG):
            process = command.start(
                "record", "p", str(folder), "--config", config_file, "--frontend", frontend
            )

            def has_samples() -> bool:
                if not (folder / "stream.json").exists():
                    return False
                with Recording(folder) as recording:
                    return len(recording) > 0

            eventually(has_samples, "samples")
            assert command.end(process) == (0, f"recording p into {folder} from number 0 on\n", "")
        process = command.start("replay", str(folder), "--backend", backend)
        with (
            Recording(folder, verify=True) as recording,
            sf.SoftDataLoader("p", frontend, recording.config, ordered=True, batch_size=4) as loader,
        ):
            for i, batch in enumerate(islice(loader, 3)):
                assert batch["x"][:, 0].tolist() == list(range(4 * i, 4 * i + 4))
            served_ = f"serving {len(recording)} samples of p at {backend}\n"
        assert command.end(process) == (0, served_, "")
