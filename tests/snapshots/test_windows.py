"""Windows inside one process: what is published is read back to the bit, and never written to by its reader."""

import math
import os
import re
from pathlib import Path

import pytest
import torch
from fork_check import check_fork
from small_memory import run_in_small_memory
from torch import Tensor

from softs_fast import _kernels
from softs_fast.errors import ConfigError, SegmentError
from softs_fast.snapshots import MAX_CONFIG_BYTES, RemoteWindow, SnapshotLayout, Window, average, fetch

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def model() -> dict[str, Tensor]:
    """Tensors of all dtypes, of odd sizes, empty, without dimensions, not contiguous, and tied."""
    torch.manual_seed(1)
    made = {f"{dtype}": (torch.randn(37, 3) * 100).to(dtype) for dtype in DTYPES}
    made["empty"] = torch.zeros(0, 4)
    made["scalar"] = torch.tensor(2.5)
    made["transposed"] = torch.randn(5, 7).T
    made["tied"] = made["scalar"]
    made["special"] = torch.tensor([-0.0, 1e-40, 3.4e38, -1e-45])
    return made


def fresh(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    if "tied" in zeros:
        zeros["tied"] = zeros["scalar"]
    return zeros


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


PAGE = Path(__file__).parents[2] / "docs" / "snapshots.md"


def maps_of(needle: str) -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if needle in line]


def test_the_page_names_the_magic_numbers_of_a_segment() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if "| magic |" in line]
    with Window(SnapshotLayout.of(model())) as window:
        address = window.address
        with Path(f"/proc/{address['pid']}/fd/{address['fd']}").open("rb") as file:
            for _, offset, _, _, value, _ in rows:
                file.seek(int(offset))
                assert file.read(8).decode() == value.split("`")[1]
    assert len(rows) == 2


def test_what_is_published_is_read_to_the_bit() -> None:
    ours = model()
    layout = SnapshotLayout.of(ours)
    with Window(layout) as window, RemoteWindow.open(window.address) as remote:
        assert remote.digest == layout.digest
        assert remote.layout == layout
        for version in range(1, 5):
            for tensor in ours.values():
                tensor.copy_(tensor.flip(0) if tensor.ndim else tensor + 1)
            assert window.publish(ours, step=version * 10, metric=None, trained=version) == version
            into = fresh(ours)
            headers = average([remote], [1.0], into, layout)
            assert headers == [remote.header()]
            assert {name: bits(into[name]) for name in ours} == {name: bits(ours[name]) for name in ours}


def test_a_header_says_what_was_published_with_it() -> None:
    tensors = {"w": torch.zeros(3)}
    with Window(SnapshotLayout.of(tensors)) as window, RemoteWindow.open(window.address) as remote:
        assert remote.header().version == 0
        window.publish(tensors, step=7, metric=-0.25, trained=5, config={"lr": 0.1, "name": "ä"})
        first = remote.header()
        assert (first.version, first.step, first.metric, first.trained) == (1, 7, -0.25, 5)
        assert first.config == {"lr": 0.1, "name": "ä"}
        window.publish(tensors, step=8, metric=math.nan, trained=6)
        second = remote.header()
        assert second.config is None
        assert second.metric is not None
        assert math.isnan(second.metric)
        assert second.published_s >= first.published_s > 0
        window.publish(tensors, step=9, metric=None, trained=6)
        assert remote.header().metric is None


def test_a_config_that_is_too_long_or_no_json_is_refused() -> None:
    tensors = {"w": torch.zeros(3)}
    with Window(SnapshotLayout.of(tensors)) as window, RemoteWindow.open(window.address) as remote:
        fits = {"a": "x" * (MAX_CONFIG_BYTES - len('{"a":""}'))}
        window.publish(tensors, step=1, metric=None, trained=1, config=fits)
        assert remote.header().config == fits
        with pytest.raises(ConfigError, match=f"has {MAX_CONFIG_BYTES + 1} bytes as JSON"):
            window.publish(tensors, step=1, metric=None, trained=1, config={"a": fits["a"] + "x"})
        with pytest.raises(ConfigError, match="is no JSON"):
            window.publish(tensors, step=1, metric=None, trained=1, config={"a": object()})
        assert remote.header().version == 1


def test_a_version_in_parts_is_seen_when_it_is_committed() -> None:
    tensors = {"w": torch.ones(1000), "b": torch.ones(10)}
    layout = SnapshotLayout.of(tensors)
    with Window(layout) as window, RemoteWindow.open(window.address) as remote:
        with pytest.raises(ConfigError, match="before a version was begun"):
            window.write(tensors)
        with pytest.raises(ConfigError, match="before it was begun"):
            window.commit(step=1, metric=None, trained=1)
        window.publish(tensors, step=1, metric=None, trained=1)
        for attempt in range(3):  # the first two are dropped
            window.begin()
            window.write({"b": torch.full((10,), 2.0 + attempt)})
            assert remote.header().version == 1
            into = fresh(tensors)
            assert average([remote], [1.0], into, layout)
            assert into["b"].eq(1).all()
        window.write({"w": torch.full((1000,), 4.0)})
        assert window.commit(step=2, metric=1.0, trained=2, config={}) == 2
        assert average([remote], [1.0], into, layout) == [remote.header()]
        assert into["w"].eq(4).all()
        assert into["b"].eq(4).all()
        assert remote.header().config == {}
        for wrong in ({"x": torch.zeros(1)}, {"b": torch.zeros(11)}, {"b": torch.zeros(10).half()}):
            with pytest.raises(ConfigError, match=r'tensor "[xb]" is'):
                window.write(wrong)


def test_the_words_of_a_version_change_in_their_order() -> None:
    tensors = {"w": torch.full((5,), 7.0)}
    with Window(SnapshotLayout.of(tensors)) as window:
        fd = window.address["fd"]
        assert isinstance(fd, int)

        def words() -> tuple[int, int, int]:
            """Latest, and the sequence words of the halves; by docs/snapshots.md, behind a page of the mapping."""
            found = (os.pread(fd, 8, page * 4096) for page in (2, 3, 4))
            latest, even, odd = (int.from_bytes(word, "little") for word in found)
            return latest, even, odd

        assert words() == (0, 0, 0)
        for version in range(1, 6):
            before = words()
            window.begin()
            marked = list(before)
            marked[1 + version % 2] = 2 * version - 1
            assert words() == tuple(marked)
            window.write(tensors)
            assert words() == tuple(marked)
            window.commit(step=1, metric=None, trained=1)
            marked[0], marked[1 + version % 2] = version, 2 * version
            assert words() == tuple(marked)


@pytest.mark.parametrize("row", [(0, 64, 1), (0, 65, 0), (0, 0, 65), (0, 1, 64), (0, 1 << 63, 1 << 63)])
def test_no_row_is_written_outside_of_a_half(row: tuple[int, int, int]) -> None:
    window = _kernels.SnapshotWindow(64, b"", bytes(32))
    window.begin()
    with pytest.raises(ConfigError, match="are outside of a window of 64"):
        window.write([row])
    window.close()


def test_an_ask_is_answered_by_the_next_version() -> None:
    tensors = {"w": torch.zeros(3)}
    layout = SnapshotLayout.of(tensors)
    with (
        Window(layout) as donor,
        Window(layout) as reader,
        Window(layout) as third,
        RemoteWindow.open(donor.address) as of_donor,
        RemoteWindow.open(reader.address) as of_reader,
    ):
        assert not donor.is_asked([of_reader])
        for _ in range(3):
            reader.ask(of_donor)
            reader.ask(of_donor)
            assert donor.is_asked([of_donor, of_reader])
            assert not third.is_asked([of_reader])
            assert not donor.is_asked([])
            donor.publish(tensors, step=1, metric=None, trained=1)
            assert not donor.is_asked([of_reader])


def test_more_asks_than_the_table_has_replace_the_oldest() -> None:
    layout = SnapshotLayout.of({"w": torch.zeros(1)})
    donors = [Window(layout) for _ in range(125)]
    remotes = [RemoteWindow.open(donor.address) for donor in donors]
    with Window(layout) as reader, RemoteWindow.open(reader.address) as of_reader:
        for remote in remotes:
            reader.ask(remote)
        asked = [donor.is_asked([of_reader]) for donor in donors]
    assert asked == [False] * 5 + [True] * 120
    for window in (*donors, *remotes):
        window.close()


def test_a_version_may_be_written_as_the_bytes_of_another_window() -> None:
    ours, theirs = model(), fresh(model())
    layout = SnapshotLayout.of(ours)
    with Window(layout) as source, Window(layout) as copy:
        source.publish(ours, step=1, metric=0.5, trained=1)
        with RemoteWindow.open(source.address) as seen, RemoteWindow.open(copy.address) as copied:
            fetched = fetch([seen], [1.0], layout)
            assert fetched is not None
            copy.begin()
            for at in range(0, layout.n_bytes, 100):
                copy.write_bytes(fetched.memory[at : at + 100], at)
            assert copied.header().version == 0
            assert copy.commit(step=2, metric=None, trained=1) == 1
            average([copied], [1.0], theirs, layout)
        assert [bits(tensor) for tensor in theirs.values()] == [bits(tensor) for tensor in ours.values()]
        copy.begin()
        for part, at in (
            (torch.zeros(1, dtype=torch.uint8), layout.n_bytes),
            (torch.zeros(layout.n_bytes + 1, dtype=torch.uint8), 0),
            (torch.zeros(4), 0),
            (torch.zeros(8, dtype=torch.uint8)[::2], 0),
        ):
            with pytest.raises(ConfigError, match=r"outside of a window|need contiguous uint8"):
                copy.write_bytes(part, at)


def test_a_reader_cannot_write() -> None:
    tensors = {"w": torch.zeros(3)}
    with Window(SnapshotLayout.of(tensors)) as window:
        [owned] = maps_of("/dev/shm/#")
        assert owned[1] == "rw-s"
        with RemoteWindow.open(window.address):
            assert sorted(line[1] for line in maps_of("/dev/shm/#")) == ["r--s", "rw-s"]
            inode = owned[4]
            assert inode not in {str(entry.stat().st_ino) for entry in os.scandir("/dev/shm")}, (
                "it has no name"
            )
            opened = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if fd.isdigit() and os.path.islink(f"/proc/self/fd/{fd}")
            ]
            assert sum(target.startswith("/dev/shm/#") for target in opened) == 1, "that of the owner"
    assert maps_of("/dev/shm/#") == []


def test_a_closed_window_stays_readable_for_those_that_have_it() -> None:
    tensors = {"w": torch.ones(3)}
    layout = SnapshotLayout.of(tensors)
    window = Window(layout)
    window.publish(tensors, step=1, metric=None, trained=1)
    address = window.address
    remote = RemoteWindow.open(address)
    assert remote.is_alive()
    window.close()
    window.close()
    assert not remote.is_alive()
    into = fresh(tensors)
    assert average([remote], [1.0], into, layout)
    assert into["w"].eq(1).all()
    with pytest.raises(SegmentError, match="cannot open shared memory of process"):
        RemoteWindow.open(address)
    for use in (
        lambda: window.publish(tensors, step=1, metric=None, trained=1),
        lambda: window.is_asked([]),
        lambda: window.ask(remote),
        window.begin,
        lambda: window.write(tensors),
        lambda: window.commit(step=1, metric=None, trained=1),
        lambda: window.address,
    ):
        with pytest.raises(ConfigError, match="the window is closed"):
            use()
    remote.close()
    remote.close()
    for read in (remote.header, remote.is_alive, lambda: average([remote], [1.0], into, layout)):
        with pytest.raises(ConfigError, match=r"the remote window of process \d+ is closed"):
            read()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_cannot_use_them_and_does_not_end_them() -> None:
    tensors = {"w": torch.ones(3)}
    layout = SnapshotLayout.of(tensors)
    window = Window(layout)
    remote = RemoteWindow.open(window.address)
    uses = (
        lambda: window.publish(tensors, step=1, metric=None, trained=1),
        lambda: window.is_asked([]),
        lambda: window.ask(remote),
        window.begin,
        lambda: window.address,
        remote.header,
        remote.is_alive,
        lambda: average([remote], [1.0], tensors, layout),
    )
    check_fork(*uses, match="in a fork of the process that", then=window.close)
    assert remote.is_alive()
    window.publish(tensors, step=1, metric=None, trained=1)
    assert remote.header().version == 1
    remote.close()
    window.close()


FULL = """
import torch
from softs_fast.errors import SegmentError
from softs_fast.snapshots import SnapshotLayout, Window
small = Window(SnapshotLayout.of({"w": torch.zeros(1000)}))
try:
    Window(SnapshotLayout.of({"w": torch.zeros(200_000)}))
except SegmentError as error:
    print(error)
small.publish({"w": torch.zeros(1000)}, step=1, metric=None, trained=1)
print("the first one goes on")
"""


def test_a_full_shared_memory_is_an_error_with_numbers() -> None:
    text, last = run_in_small_memory(FULL).splitlines()
    found = re.match(
        r"cannot take (\d+) bytes of shared memory, (\d+) are free: No space left on device; ", text
    )
    assert found, text
    assert int(found[1]) > 2 * 800_000 > 1_048_576 > int(found[2]) > 900_000
    assert last == "the first one goes on"


def test_five_thousand_tensors() -> None:
    tensors = {f"layer.{i}.weight": torch.full((i % 7 + 1,), float(i)) for i in range(5000)}
    layout = SnapshotLayout.of(tensors)
    with Window(layout) as window, RemoteWindow.open(window.address) as remote:
        window.publish(tensors, step=1, metric=None, trained=1)
        assert remote.layout == layout
        into = fresh(tensors)
        assert average([remote], [1.0], into, layout)
        assert all(torch.equal(into[name], tensor) for name, tensor in tensors.items())


def test_a_model_without_tensors() -> None:
    layout = SnapshotLayout.of({})
    with Window(layout) as window, RemoteWindow.open(window.address) as remote:
        assert window.publish({}, step=1, metric=1.0, trained=1) == 1
        assert average([remote], [1.0], {}, layout) == [remote.header()]


@pytest.mark.slow
def test_a_tensor_of_more_than_a_gigabyte() -> None:
    tensors = {"w": torch.arange(300_000_000, dtype=torch.int32).view(torch.float32), "b": torch.ones(3)}
    tensors["w"].view(torch.int32).bitwise_and_(0x3FFFFFFF)  # finite
    layout = SnapshotLayout.of(tensors)
    with Window(layout) as window, RemoteWindow.open(window.address) as remote:
        window.publish(tensors, step=1, metric=None, trained=1)
        into = fresh(tensors)
        assert average([remote], [1.0], into, layout)
        assert torch.equal(into["w"].view(torch.int32), tensors["w"].view(torch.int32))
