"""Flows of which heads read the dataset: the order, ids and bits of one process; the master has no value."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import shard_flow
import torch
from flow_threads import ThreadWorkers, in_threads, when
from shard_flow import GROUP, make, make_two, summary
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import ElementsRead, Message, ReadElements
from softs_fast.errors import ConfigError, FlowError

#: Numbers of requests that no master has made.
STRAY = count(1 << 40)


def source_of(n_shards: int, n_items: int = 24) -> list[dict[str, Any]]:
    """The elements in the order in which they become rows: one of each shard in turn."""
    shards = [list(shard_flow.Items(one)) for one in numbers_of(n_shards, n_items)]
    found = []
    while any(shards):
        found += [one.pop(0) for one in shards if one]
    return found


def numbers_of(n_shards: int, n_items: int) -> list[list[int]]:
    model = type("Some", (shard_flow.Model,), {"n_items": n_items})()
    return [model.prompts(shard, n_shards).numbers for shard in range(n_shards)]


def in_master(n_shards: int, **arguments: Any) -> df.Flow:
    """The same flow, of which the master reads the same elements from a list."""
    flow = make(**arguments)
    calls = list(flow.declaration.calls)
    return df.Flow(
        calls, source=source_of(n_shards), group=GROUP, digests=True, max_age=arguments.get("max_age", 0)
    )


def requests(workers: ThreadWorkers) -> list[tuple[int, tuple[int, ...]]]:
    return [(worker, one.numbers) for worker, one in workers.hub.sent if isinstance(one, ReadElements)]


@pytest.mark.parametrize("kind", ["sequence", "iterable"])
@pytest.mark.parametrize(("layout", "n_workers"), [("dp1", 1), ("dp3", 3), ("dp2 tp2", 4), ("dp2 pp2", 4)])
def test_the_same_as_in_one_process_and_as_a_source_of_the_master(
    kind: str, layout: str, n_workers: int
) -> None:
    arguments: dict[str, Any] = {"layout": layout, "n_workers": n_workers, "kind": kind}
    n_shards = n_workers // (2 if " " in layout else 1)
    with in_master(n_shards, **arguments) as flow:
        expected = summary(flow)
    assert len(expected) == 24 * GROUP // 8
    with make(**arguments) as flow:
        assert summary(flow) == expected
    flow, workers = in_threads(lambda: make(**arguments))
    with flow:
        n_elements = flow.ask("spec")["train"]["elements"]
        found = summary(flow)
        assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]
    assert n_elements == (24 if kind == "sequence" else None)
    if n_shards > 1:  # the digest of a call on several workers is one of theirs
        found, expected = [without_digests(one) for one in (found, expected)]
    assert found == expected
    heads = {worker for worker, _ in requests(workers)}
    # Of pipeline ranks the last one reads.
    assert heads == {"dp2 tp2": {0, 2}, "dp2 pp2": {1, 3}}.get(layout, set(range(n_shards)))


def without_digests(steps: list[Any]) -> list[Any]:
    return [(*step[:-1], [(one[0], one[1], one[3]) for one in step[-1]]) for step in steps]


def test_rows_do_not_change_with_the_elements_of_a_shard_of_the_same_process() -> None:
    items = [{"prompt": torch.tensor([float(i)]), "answer": ""} for i in range(8)]
    shard = {"prompts": lambda self, shard, n_shards: items}
    role = df.place(type("Own", (shard_flow.Model,), shard), name="own")
    calls = [
        df.call(role.double, "prompt -> y", rows=GROUP),
        df.call(role.train, "prompt, answer, y", rows=GROUP),
    ]
    with df.Flow(calls, source=df.dataset(role.prompts, "prompt, answer"), group=GROUP) as flow:
        ids = flow.fetch(GROUP)
        items[0]["prompt"].fill_(9.0)  # type: ignore[attr-defined]
        assert flow.values(ids, "prompt")[0].tolist() == [0.0]


def test_no_element_is_read_twice_and_the_master_gets_places_alone() -> None:
    flow, workers = in_threads(lambda: make("dp2", 2, "iterable"))
    read: dict[int, list[int]] = {0: [], 1: []}
    kinds = set()

    def look(worker: int, message: Message) -> None:
        kinds.add(type(message).__name__)
        if isinstance(message, ElementsRead):
            for column in message.columns.places.values():
                assert {place.worker for place in column} <= {worker}

    workers.hub.on_message = look
    with flow:
        for _ in flow.steps():
            pass
    for worker, numbers in requests(workers):
        read[worker] += numbers
    assert "ElementsRead" in kinds
    for worker, numbers in enumerate(numbers_of(2, 24)):
        assert sorted(set(read[worker])) == read[worker]
        assert len([one for one in read[worker] if one < len(numbers)]) == len(numbers)


def test_what_was_dropped_is_refilled_by_tags_alone() -> None:
    arguments: dict[str, Any] = {"layout": "dp1", "n_workers": 1, "drops": True}
    with make(**arguments) as flow:
        expected = summary(flow)
        assert expected[-1][2] == {"dull": len([i for i in range(24) if 1 + i % 5 == 3])}
    flow, _ = in_threads(lambda: make(**arguments))
    with flow:
        assert summary(flow) == expected


def test_tags_of_elements_are_tags_of_their_rows() -> None:
    flow, _ = in_threads(make)
    with flow:
        ids = flow.fetch(4)
        rows = flow._session.runner.master.rows
        assert [rows.tags(row_id)["length"] for row_id in ids] == [1, 1, 2, 2]
        assert flow.values(ids, "answer") == ["text 0", "text 0", "text 1", "text 1"]


def test_rows_of_a_group_share_one_value_that_goes_with_the_last_of_them() -> None:
    flow, workers = in_threads(make)
    with flow:
        ids = flow.fetch(2 * GROUP)
        held = flow._session.runner.held
        places = held.places(ids, "prompt")
        assert places[0] == places[1] != places[2] == places[3]
        assert flow.clear_data_cache(ids[:1]) == 1
        assert held.columns(ids[0]) == []
        assert flow.values(ids[2:], "answer") == ["text 1", "text 1"]
        await_taken(workers, 0, lambda one: one.get(places[2:])[0].tolist() == [1.0, 2.0])
        with pytest.raises(FlowError, match="are gone"):
            await_taken(workers, 0, lambda one: not one.get(places[:1]))


def await_taken(workers: ThreadWorkers, worker: int, test: Any) -> None:
    """Wait until a worker has taken what it was sent: it answers a request behind it."""
    loop = workers.workers[worker]._loop
    assert loop is not None
    answered = when(workers.hub, lambda one, message: one == worker, lambda: None)
    workers.hub.send(worker, ReadElements(next(STRAY), 0, (0,)))
    assert answered.wait(WATCHDOG_S)
    assert test(loop.store)


def test_storage_is_flat_over_many_steps() -> None:
    flow, workers = in_threads(lambda: make("dp2", 2, n_items=400))
    with flow:
        sizes = []
        for _ in flow.steps(40):
            sizes.append(
                [one._loop.store.n_bytes for one in workers.workers.values() if one._loop is not None]
            )
            assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]
        for worker in (0, 1):
            # What has a slot or is a step ahead, half of it here, and what the request of `await_taken` has read.
            await_taken(workers, worker, lambda store: len(store._columns["prompt"]) <= 4 + 1)
        assert max(sum(one) for one in sizes[20:]) <= 2 * max(sum(one) for one in sizes[:20])
        held = flow._session.runner.held
        assert len(held._elements) * GROUP == len(held._groups) == len(flow._session.runner.master.rows)


def test_heads_read_a_step_ahead_in_few_requests() -> None:
    flow, workers = in_threads(lambda: make("dp2", 2, n_items=400))
    with flow:
        next(flow.steps(1))
        asked = requests(workers)
        # Four groups have slots, and four more are one step ahead.
        assert sum(len(numbers) for _, numbers in asked) == 8
        assert len(asked) == 2
        list(flow.steps(9))
        asked = requests(workers)
        assert sum(len(numbers) for _, numbers in asked) == 11 * 4
        assert len(asked) == 2 + 2 * 9


def test_one_process_reads_what_is_needed_and_nothing_ahead() -> None:
    with make("dp2", 2, "iterable", n_items=400) as flow:
        next(flow.steps(1))
        (maker,) = [role for role in flow.declaration.roles if role.name == "maker"]
        assert flow.role(maker).n_read == 4


def test_a_worker_that_reads_need_not_have_a_function() -> None:
    with make() as flow:
        expected = summary(flow)
    flow, workers = in_threads(lambda: make(loader=2))
    with flow:
        assert summary(flow) == expected
    assert {worker for worker, _ in requests(workers)} == {2}


def ids_of(flow: df.Flow) -> list[Any]:
    """Numbers are means over ranks in several processes, so they differ."""
    return [(one[0], one[1]) for one in summary(flow, 1)[0][-1]]


def test_partitions_have_datasets_of_their_own() -> None:
    with make_two() as flow:
        expected = [flow.fetch(4, partition="val"), ids_of(flow), flow.fetch(4, partition="val")]
        assert flow.ask("spec")["val"]["elements"] == 10
    flow, workers = in_threads(make_two)
    with flow:
        assert [flow.fetch(4, partition="val"), ids_of(flow), flow.fetch(4, partition="val")] == expected
        spec = flow.ask("spec")
        assert (spec["train"]["elements"], spec["val"]["elements"]) == (24, 10)
        sources = [one.source for _, one in workers.hub.sent if isinstance(one, ReadElements)]
    assert sources.count(1) == 4
    assert flow.ask("spec")["val"]["elements"] is None  # it is closed


def test_fetch_by_hand_waits_for_what_heads_read_and_is_short_at_the_end() -> None:
    flow, _ = in_threads(lambda: make("dp2", 2, n_items=3))
    with flow:
        ids = flow.fetch(8)
        assert len(ids) == 3 * GROUP
        assert flow.fetch(2) == ()
        with pytest.raises(ConfigError, match="fetch of 3 rows: need whole groups of 2"):
            flow.fetch(3)
        with pytest.raises(ConfigError, match="partition 'test' has no source; there are train"):
            flow.fetch(2, partition="test")


def test_how_many_elements_there_are() -> None:
    with make("dp3", 3) as flow:
        assert flow.ask("spec")["train"]["elements"] == 24
    with make("dp3", 3, "iterable") as flow:
        assert flow.ask("spec")["train"]["elements"] is None
    with in_master(1) as flow:
        assert flow.ask("spec")["train"]["elements"] == 24


@pytest.mark.parametrize("max_bytes", [1, 400, 4000])
def test_bytes_of_rows_are_bounded_as_those_of_other_sources(max_bytes: int) -> None:
    with make(max_bytes=max_bytes, max_age=1) as flow:
        expected = [one[1] for one in summary(flow)]
    flow, _ = in_threads(lambda: make(max_bytes=max_bytes, max_age=1))
    with flow:
        assert [one[1] for one in summary(flow)] == expected


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("raises", "ValueError: no such file.*Traceback.*raise ValueError"),
        ("lacks", "it lacks answer; it has prompt"),
        ("type", "column 'prompt' has a set; expected a tensor"),
        ("list", "it is a list; need a dict of prompt, answer"),
        ("ends", "it is a NoneType; need a dict of prompt, answer"),
    ],
)
def test_what_is_no_element_ends_the_flow_by_name_when_its_turn_comes(kind: str, complaint: str) -> None:
    """Shard 1 fails at its fourth element, the eighth of all: one step of four groups is whole."""
    name = r"(?s)maker.broken: shard 1 of 2 on worker 1, element 3: .*"
    for one in (
        make("dp2", 2, kind, method="broken"),
        in_threads(lambda: make("dp2", 2, kind, method="broken"))[0],
    ):
        with one as flow:
            steps = flow.steps()
            assert next(steps).number == 1
            for again in (steps, flow.steps()):
                with pytest.raises(FlowError, match=name + complaint):
                    next(again)


def test_an_error_of_a_method_that_gives_a_shard_is_met_before_anything_runs() -> None:
    for make_one in (make, lambda **some: in_threads(lambda: make(**some))[0]):
        flow = make_one(method="double")
        with (
            pytest.raises((FlowError, TypeError), match="takes 2 positional arguments but 3 were given"),
            flow,
        ):
            pass


def test_what_cannot_be_a_dataset_is_refused() -> None:
    role = df.place(shard_flow.Model, name="role")
    other = df.place(shard_flow.Model, on=[1], name="role")
    calls = [df.call(role.train, "prompt, answer, y", rows=2)]
    with pytest.raises(AttributeError, match="role 'role' \\(Model\\) has no method 'texts'"):
        df.dataset(role.texts, "prompt")
    with pytest.raises(ConfigError, match="need a method of a placed role, such as dataset"):
        df.dataset(summary, "prompt")  # type: ignore[arg-type]
    for text in ("prompt -> answer", "prompt as answer"):
        with pytest.raises(ConfigError, match="need names alone, such as 'prompt, answer'"):
            df.dataset(role.prompts, text)
    with pytest.raises(ConfigError, match="prompt is a column and a tag"):
        df.dataset(role.prompts, "prompt", tags="prompt")
    with pytest.raises(ConfigError, match="have no input"):
        df.dataset(role.prompts, "")
    for columns, complaint in (
        ("prompt, answer", "train reads y, which has no producer; there are: answer, prompt"),
        (
            "prompt, answer, y, z",
            "dataset role.prompts of partition 'train' has columns that no function reads: z",
        ),
    ):
        with pytest.raises(ConfigError, match=complaint):
            df.Flow(calls, source=df.dataset(role.prompts, columns))
    with pytest.raises(ConfigError, match="several roles are named role"):
        df.Flow(calls, source=df.dataset(other.prompts, "prompt, answer, y"))


def test_another_dataset_is_another_flow() -> None:
    lines = make().declaration.lines()
    assert "source of train: dataset maker.prompts: prompt, answer; tags length" in lines
    assert lines != make(loader=2).declaration.lines()


def test_explain_says_which_head_reads() -> None:
    flow, workers = in_threads(make)
    with flow:
        began = when(workers.hub, lambda worker, one: isinstance(one, ElementsRead), lambda: None)
        flow._session.admission.has(2, "train")
        assert (
            "\nmaker.prompts: shard 0 of 1: worker 0 reads 8 elements since 0.0 s, the first is 0"
            in flow.explain()
        )
        assert began.wait(WATCHDOG_S)
        assert len(flow.fetch(4)) == 4
        assert torch.equal(flow.values([0], "prompt")[0], torch.tensor([0.0]))  # type: ignore[arg-type]
