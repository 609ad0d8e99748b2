"""Mediums as the README of softs has them: shared memory, and those that users write."""

import os
from pathlib import Path

import pytest
from samples import CONFIG, check, failure, next_model, take
from school import School

import softs_fast
from softs_fast import ConfigError, DistillIterableDataset, FilesystemMedium, SegmentError, TCPMedium
from softs_fast.mediums import Medium, MediumBase, SharedMemoryManager


class FileMedium(MediumBase):
    """That of the README of softs."""

    def __init__(self, slot_count: int, slot_stride: int, path: str):
        self._path = path
        self._slot_count = slot_count
        self._slot_stride = slot_stride
        self._file = open(path, "w+b")  # noqa: SIM115
        self._file.truncate(slot_count * slot_stride)

    @property
    def buf_name(self) -> str:
        return self._path

    @property
    def slot_count(self) -> int:
        return self._slot_count

    @property
    def slot_stride(self) -> int:
        return self._slot_stride

    def read_slot_tensors(self, slot_id: int) -> bytes:
        offset = slot_id * self._slot_stride
        self._file.seek(offset)
        return self._file.read(self._slot_stride)

    def close(self) -> None:
        self._file.close()

    def unlink(self) -> None:
        import os

        os.unlink(self._path)


def test_samples_through_a_medium_of_the_users(school: School, short_path: Path) -> None:
    school.broker()
    school.worker(file_dirs=[str(short_path)])
    path = short_path / "slots"
    client = school.student(medium=FileMedium(8, CONFIG.nbytes(), str(path)))
    for model in (1, 2):
        client.set_model(str(model))
        # Many rounds: Python's buffer of the file must not show what was in a slot before.
        for _ in range(50):
            assert next_model(client) == model
    assert path.exists()
    client.close()
    assert not path.exists()


def test_a_path_that_is_relative(school: School, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_path)
    client = school.student(medium=FileMedium(8, CONFIG.nbytes(), "slots"))
    assert client.medium.address == str(short_path / "slots")
    client.close()


def test_a_worker_writes_only_where_it_was_told(school: School, short_path: Path) -> None:
    school.broker()
    school.worker(file_dirs=[str(short_path / "elsewhere")])
    path = short_path / "slots"
    client = school.student(medium=FileMedium(8, CONFIG.nbytes(), str(path)))
    client.set_model("1")
    assert "cannot open the medium" in failure(client)
    assert path.read_bytes() == bytes(8 * CONFIG.nbytes())


def test_a_dataset_with_a_medium_of_the_users(school: School, short_path: Path) -> None:
    school.broker()
    school.worker(file_dirs=[str(short_path)])
    client = school.student()
    client.set_model("3")
    data = DistillIterableDataset(
        0,
        client.generation_value,
        4,
        CONFIG,
        school.frontend,
        medium=lambda count, stride: FileMedium(count, stride, f"{short_path}/{os.getpid()}"),
    )
    for _, sample in zip(range(20), data, strict=False):
        assert check(sample) == 3
    data.close()
    assert not (short_path / str(os.getpid())).exists()


@pytest.mark.parametrize("medium_cls", [FilesystemMedium, TCPMedium])
def test_the_mediums_of_the_market(
    school: School, medium_cls: type[softs_fast.market.Medium], short_path: Path
) -> None:
    school.broker()
    if medium_cls is FilesystemMedium:
        # Any worker writes to files of softs-fast clients.
        school.worker()

        class Here(FilesystemMedium):
            def __init__(self, address: str | None, *args: object, **kwargs: object) -> None:
                super().__init__(str(short_path / "slots"), *args, **kwargs)  # type: ignore[arg-type]

        client = school.student(medium_cls=Here)
    else:
        school.worker(medium_cls=TCPMedium)
        client = school.student(medium_cls=TCPMedium)
    client.set_model("1")
    for _ in range(20):
        assert next_model(client) == 1


def test_shared_memory_of_the_caller(school: School) -> None:
    school.broker()
    school.worker()
    shm = SharedMemoryManager(8, CONFIG.nbytes(), read_only=True)
    client = school.student(medium=shm)
    client.set_model("1")
    sample = take(client)
    assert shm.read_slot_tensors(sample.slot_id) == sample.data
    assert check(CONFIG.decode(sample.data)) == 1


def test_both_sides_of_shared_memory() -> None:
    with SharedMemoryManager(slot_count=4, slot_stride=8, read_only=True) as student:
        assert isinstance(student, Medium)
        assert (student.slot_count, student.slot_stride, student.buf_name) == (4, 8, f"sl_{student.run_id}")
        with SharedMemoryManager(
            slot_count=4, slot_stride=8, read_only=False, run_id=student.run_id
        ) as worker:
            worker.write_slot(3, b"12345678")
            assert worker.buf_name == student.buf_name
            with pytest.raises(ConfigError, match="7 bytes"):
                worker.write_slot(0, b"1234567")
            with pytest.raises(SegmentError, match="no slot 4"):
                worker.write_slot(4, b"12345678")
            worker.unlink()
        assert student.read_slot_tensors(3) == b"12345678"
        with pytest.raises(SegmentError, match="no slot -1"):
            student.read_slot_tensors(-1)
        with pytest.raises(SegmentError, match="read_only"):
            student.write_slot(0, b"12345678")
        with pytest.raises(SegmentError, match="need 100 slots"):
            SharedMemoryManager(100, 8, read_only=False, run_id=student.run_id)
        student.unlink()
        with pytest.raises(softs_fast.SegmentNotFound):
            SharedMemoryManager(4, 8, read_only=False, run_id=student.run_id)


def test_shared_memory_under_a_name() -> None:
    name = f"t{os.getpid()}"
    with SharedMemoryManager(1, 8, read_only=True, run_id=name) as shm:
        assert shm.buf_name == f"sl_{name}"
        shm.unlink()
    with pytest.raises(ConfigError, match="run_id is needed"):
        SharedMemoryManager(1, 8, read_only=False)


def test_mediums_that_do_not_fit(school: School, short_path: Path) -> None:
    small = FileMedium(4, 8, str(short_path / "small"))
    with pytest.raises(ConfigError, match="4 slots of 8 bytes, need slot_count=8"):
        school.student(medium=small)
    small.close()
    with pytest.raises(ConfigError, match=r"dict lacks buf_name, .*derive it from MediumBase"):
        school.student(medium={})
    with SharedMemoryManager(8, CONFIG.nbytes(), read_only=True) as shm:
        other = SharedMemoryManager(8, CONFIG.nbytes(), read_only=False, run_id=shm.run_id)
        with pytest.raises(ConfigError, match="read_only=True"):
            school.student(medium=other)
        other.close()
        shm.unlink()
