"""DistillIterableDataset and DistillDataLoader: the newest model's samples, in whatever process."""

import ctypes
import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import CONFIG, check
from school import School
from torch.utils.data import DataLoader
from waiting import eventually

import softs_fast
from softs_fast import ConfigError, DistillDataLoader, DistillIterableDataset, StudentClient
from softs_fast.record import Recording

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def dataset(school: School, client: StudentClient, **arguments: Any) -> DistillIterableDataset:
    arguments = {"slot_count": 8, "frontend_endpoint": school.frontend} | arguments
    return DistillIterableDataset(0, client.generation_value, batch_config=CONFIG, **arguments)


def check_batch(batch: dict[str, torch.Tensor], n: int) -> int:
    """Check all samples of a batch; the number of its model."""
    models = {check({name: tensor[i] for name, tensor in batch.items()}) for i in range(n)}
    assert len(models) == 1
    return models.pop()


@pytest.mark.parametrize("zero_copy", [False, True])
def test_samples_follow_the_model(school: School, zero_copy: bool) -> None:
    client = school.begun()
    data = dataset(school, client, zero_copy=zero_copy, debug=True)
    client.set_model("1")
    samples = iter(data)
    for model in range(1, 30):
        for _ in range(model % 4 + 1):
            assert check(next(samples)) == model
        client.set_model(str(model + 1))
    data.close()


def test_an_iterator_waits_for_the_first_model(school: School) -> None:
    client = school.begun()
    data = dataset(school, client, request_timeout=0.2)
    with pytest.raises(softs_fast.NoModel, match=r"no model yet.*set_model\(\)"):
        next(iter(data))
    assert data.generation == 0
    client.set_model("1")
    assert check(next(iter(data))) == 1
    data.close()


def test_the_error_of_one_model_reaches_its_students(
    school: School, choosy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softs_fast.loader.wait_policy._FAILING_S", 0.1)
    school.broker()
    school.worker(choosy)
    client = school.student()
    client.set_model("bad")
    # Few slots: suppliers have room for the texts of few errors at a time.
    data = dataset(school, client, max_retries=3, slot_count=2)
    with pytest.raises(softs_fast.GeneratorFailed, match="boom of model bad"):
        next(iter(data))
    client.set_model("good")
    assert next(iter(data))["model"] == 0
    data.close()


def test_a_dataset_that_does_not_follow_says_how_to(school: School, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softs_fast.loader.wait_policy._FAILING_S", 0.1)
    school.broker()
    worker = school.worker()
    client = school.student()
    client.set_model("1")
    stuck = ctypes.c_longlong(1)
    data = DistillIterableDataset(0, stuck, 4, CONFIG, school.frontend, max_retries=1)
    client.set_model("2")
    eventually(lambda: worker.generation == 2, "the worker knows")
    with pytest.raises(softs_fast.GeneratorFailed, match=r"generation 1 is over.*start_sub_listener\(\)"):
        next(iter(data))
    data.close()


@pytest.mark.parametrize("lock", [False, True])
def test_values_of_any_kind(school: School, lock: bool) -> None:
    client = school.begun()
    client.set_model("1")
    value: Any = multiprocessing.get_context("spawn").Value("q", 0, lock=lock)
    data = DistillIterableDataset(0, value, 4, CONFIG, school.frontend)
    value.value = 1
    assert check(next(iter(data))) == 1
    data.close()


def test_arguments_that_make_no_dataset() -> None:
    value = ctypes.c_longlong(0)
    for arguments, text in [
        ((0, value, 0, CONFIG), "slot_count"),
        ((-1, value, 1, CONFIG), "student_rank"),
        ((0, 7, 1, CONFIG), "generation_value"),
        ((0, value, 1, CONFIG, "ipc:///x", 0), "max_retries"),
        ((0, value, 1, CONFIG, "ipc:///x", 1, -1.0), "retry_delay"),
    ]:
        with pytest.raises(ConfigError, match=text):
            DistillIterableDataset(*arguments)
    with pytest.raises(ConfigError, match="zero_copy"):
        DistillIterableDataset(0, value, 1, CONFIG, medium=lambda n, size: None, zero_copy=True)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="must be a DistillIterableDataset"):
        DistillDataLoader([1])  # type: ignore[arg-type]


def twice(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A user's own collate_fn."""
    batch: dict[str, torch.Tensor] = torch.utils.data.default_collate(samples)
    return {**batch, "double": batch["model"] * 2}


@pytest.mark.parametrize(
    ("method", "collate_fn", "ordered"),
    [
        *itertools.product((None, "fork"), (None, twice), (False, True)),
        ("forkserver", None, True),
    ],
)
def test_no_loader_hands_out_a_stale_batch(
    school: School, method: str | None, collate_fn: Any, ordered: bool
) -> None:
    school.broker()
    for _ in range(2):
        school.worker()
    client = school.student()
    client.set_model("1")
    data = dataset(school, client, slot_count=16, ordered=ordered)
    loader = DistillDataLoader(
        data,
        batch_size=3,
        num_workers=0 if method is None else 2,
        multiprocessing_context=method,
        collate_fn=collate_fn,
    )
    batches = iter(loader)
    for model in range(1, 12):
        for i in range(model % 5 + 1):
            batch = next(batches)
            assert check_batch(batch, 3) == model
            if ordered:
                assert batch["sequence"].tolist() == [3 * i, 3 * i + 1, 3 * i + 2]
            if collate_fn is not None:
                assert batch["double"].tolist() == [2 * model] * 3
        client.set_model(str(model + 1))
    del batches
    data.close()


def test_the_samples_of_one_model_are_recorded(school: School, tmp_path: Path) -> None:
    config = softs_fast.BatchConfig(
        [softs_fast.TensorSpec("model", (), "int64"), softs_fast.TensorSpec("number", (), "int64")]
    )

    def numbered(model_id: str, model_cfg: Any, sequence: int, rank: int) -> dict[str, Any]:
        return {"model": int(model_id), "number": sequence}

    school.broker()
    school.worker(numbered, batch_config=config)
    client = school.student(config=config)
    client.set_model("1")
    data = DistillIterableDataset(0, client.generation_value, 16, config, school.frontend, ordered=True)
    with DistillDataLoader(data, batch_size=4, record=tmp_path) as loader:
        batches = iter(loader)
        assert [next(batches)["number"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        client.set_model("2")
        with pytest.raises(ConfigError, match="record each product in a folder of its own"):
            next(batches)
        del batches
    with Recording(tmp_path) as recording:
        assert recording.batch(range(8))["model"].tolist() == [1] * 8
        assert recording.span == range(8)


def test_a_loader_without_batches(school: School) -> None:
    client = school.begun()
    client.set_model("1")
    data = dataset(school, client)
    loader = DistillDataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
    samples = iter(loader)
    for model in range(1, 10):
        for _ in range(3):
            assert check(next(samples)) == model
        client.set_model(str(model + 1))
    del samples
    data.close()


def test_a_loader_of_torch(school: School) -> None:
    client = school.begun()
    client.set_model("1")
    data = dataset(school, client)
    loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    assert check_batch(next(batches), 2) == 1
    client.set_model("2")
    # What the worker had fetched ahead comes first. It puts samples together one by one, so a batch may have both models.
    samples = [
        {name: tensor[i] for name, tensor in batch.items()}
        for _, batch in zip(range(20), batches, strict=False)
        for i in range(2)
    ]
    models = [check(sample) for sample in samples]
    assert models == sorted(models)
    assert models[-1] == 2
    del batches
    data.close()
