"""Weights of which another worker of the node has a copy: it may have ended, and what is not used is not kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import ranks
import torch
from test_shown_weights import declare, hook, run, state
from two_stores import store_on

from softs_fast import records
from softs_fast.dataflow.link.messages import Abort, Fetched, Result
from softs_fast.dataflow.process.part import state_id, weights_column
from softs_fast.dataflow.store import Place


def holds_weights(say: Callable[[Any], None], rank: int, size: int) -> None:
    with store_on("near", 4) as store:
        say([place.as_wire() for place in store.put("x", [0], [torch.ones(4)])])
        threading.Event().wait()


@pytest.fixture
def of_the_dead() -> Place:
    """The place of a value of a process that has ended."""
    with ranks.start(holds_weights, 1) as holders:
        [[wire]] = holders.results()
    return Place.from_wire(wire)


def test_a_copy_of_a_process_that_has_ended_is_replaced_by_the_source(of_the_dead: Place) -> None:
    declared = declare([1], [0], "dp1")
    with store_on("near", 0) as mine, store_on("far", 1) as other:
        shown = state(declared, other, 1, 5.0)
        sent, net, loop = run([mine], declared, hook(declared, 1), replace(shown, near=of_the_dead))
        fetched, ended = sent
        assert isinstance(fetched, Fetched)
        assert isinstance(ended, Result)
        assert ended.failure is None
        assert (net.weight.item(), net.bias.item()) == (5.0, -5.0)
        # The master is told of the copy, and frees it with the others.
        assert (fetched.ids, fetched.columns.names) == ((state_id(1),), (weights_column(shown.shown.place),))
        assert mine.n_bytes > 0
        loop.store.free(fetched.ids)
        assert mine.n_bytes == 0
        assert not loop._part.near


def test_without_a_copy_the_end_of_the_source_is_an_error(of_the_dead: Place) -> None:
    declared = declare([1], [0], "dp1")
    with store_on("near", 0) as mine, store_on("near", 1) as other:
        shown = state(declared, other, 1, 5.0)
        place = records.replace(shown.shown.place, segment=of_the_dead.segment)
        dead = replace(shown, shown=replace(shown.shown, place=place))
        (ended,), net, _ = run([mine], declared, hook(declared, 1), dead)
        assert ended.failure is not None
        assert ended.failure.text.startswith("Unreadable: ")
        assert net.weight.item() == 1.0


def test_what_is_shown_for_a_step_that_was_skipped_is_dropped_with_the_next(of_the_dead: Place) -> None:
    declared = declare([1], [0], "dp1")
    with store_on("near", 0) as mine, store_on("near", 1) as other:
        first, second, third = (state(declared, other, ticket, float(ticket)) for ticket in (1, 2, 3))
        messages = [
            *(hook(declared, 1), hook(declared, 2), hook(declared, 3)),
            Abort(2, "it failed"),
            # The master has it of a worker that had shown it before it was told.
            *(replace(second, near=of_the_dead), first, third),
        ]
        sent, net, loop = run([mine], declared, *messages)
        assert [(one.ticket, one.failure is None) for one in sent] == [(2, False), (1, True), (3, True)]
        assert net.weight.item() == 3.0
        assert not loop._states
        assert not loop._part.near
