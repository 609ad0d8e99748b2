"""The name of the product in shared memory: never torn, whichever process writes it."""

import multiprocessing

import pytest

from softs_fast.loader.product import shared_id as model_id
from softs_fast.loader.product.shared_id import SharedModelId

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_a_half_written_model_id_is_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SharedModelId("a")
    data.write("old model")
    view = data._record
    old = bytes(view)
    changed = data.version()
    data.write("the new model, which is longer")
    assert data.version() == changed + 1
    data.write("the new model, which is longer")
    assert data.version() == changed + 1, "nothing has changed"
    new_record = bytes(view)
    for cut in (1, 4, 6, 8, 20):
        view[:] = new_record[:cut] + old[cut:]
        monkeypatch.setattr(model_id.time, "sleep", lambda _: view.__setitem__(slice(None), new_record))
        data._seen = (b"", "")
        assert data.read() == "the new model, which is longer", cut


def _switch(data: SharedModelId, models: list[str], rounds: int) -> None:
    for i in range(rounds):
        data.write(models[i % len(models)])


def test_model_ids_from_several_processes() -> None:
    data = SharedModelId("a")
    models = ["é" * 128, "short", "", "x" * 200]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_switch, args=(data, models, 3000)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(data.read())
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {*models, "a"}
    assert data.read() in models


def test_changes_of_several_processes_are_all_counted() -> None:
    data = SharedModelId("a")
    before = data.version()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_count_changes, args=(data, 3000)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert data.version() == before + 9000


def _count_changes(data: SharedModelId, n: int) -> None:
    for _ in range(n):
        data._write(b"b")
