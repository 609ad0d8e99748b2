"""Any message of the wire, as strategies of hypothesis."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.events import Booted, Completed, Drain, End, Evict, Resize
from softs_fast.coordination.job.options import MAX_SEATS, MAX_TEXT
from softs_fast.coordination.job.state import Phase
from softs_fast.coordination.job.status import FenceCount, SeatStatus, Status
from softs_fast.coordination.wire import requests as r

u64 = st.integers(0, (1 << 64) - 1)
#: Steps, epochs.
u63 = st.integers(0, (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
#: Characters of UTF-8, with NUL and those beyond 16 bits.
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
#: Worker ids and addresses.
names = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=16)
states = st.builds(m.WorkerState, u64, u63, u63, st.booleans())
seats = st.integers(0, MAX_SEATS - 1)


@st.composite
def tables(draw: st.DrawFn) -> m.Table:
    numbers = sorted(draw(st.sets(seats, min_size=1, max_size=6)))
    members = tuple(
        m.Member(rank, seat, draw(names), draw(u64), draw(names)) for rank, seat in enumerate(numbers)
    )
    ranks = st.integers(0, len(members) - 1)
    survivors = tuple(sorted(draw(st.sets(ranks))))
    source = draw(st.none() | ranks)
    roll = draw(st.sampled_from(get_args(m.Roll)))
    return m.Table(draw(u64), draw(u63), members, draw(u63), roll, survivors, source, draw(any_text))


from_worker = st.one_of(
    st.builds(m.Hello, any_text, names, u64, st.none() | u32, names, states, u32, u64, u63),
    st.builds(m.Ready, states, u64, u63),
    st.builds(m.Step, u63, u63),
    st.builds(m.Fault, u63, u63, st.none() | u32, any_text),
    st.builds(m.Leave, any_text, st.booleans()),
    st.builds(m.CheckpointBegin, u63, u63, any_text),
    st.builds(m.CheckpointEnd, u63, u63, any_text),
    st.builds(m.CheckpointDamaged, u63, u63, any_text),
)
fences = st.builds(
    m.Fence, u64, u63, st.sampled_from(get_args(m.Cause)), st.none() | u32, any_text, st.booleans()
)
to_worker = st.one_of(
    st.builds(m.Welcome, u64, st.none() | u32),
    tables(),
    fences,
    st.builds(m.Refused, st.sampled_from(get_args(m.Refusal)), any_text, names),
    st.builds(m.Alarm, st.lists(u32, max_size=5).map(tuple), any_text),
)
actions = st.one_of(
    st.builds(Evict, u32, any_text),
    st.builds(Drain, u32, any_text),
    st.builds(Resize, u32, u32),
    st.builds(End, any_text),
)
completed = st.builds(Completed, u63, u63, any_text)
records = st.one_of(st.builds(Booted, any_text, u64), tables(), completed)


@st.composite
def keys_requests(draw: st.DrawFn) -> r.KeysRequest:
    operation = draw(st.sampled_from(get_args(r.Operation)))
    n_most = 5 if operation in ("wait", "check") else 1
    keys = tuple(draw(st.lists(any_text, min_size=1, max_size=n_most)))
    amount = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    return r.KeysRequest(
        draw(any_text), draw(u64), draw(u63), operation, keys, draw(st.binary(max_size=99)), amount, draw(u32)
    )


requests = st.one_of(
    keys_requests(),
    st.builds(r.RegisterWorkerRequest, names, names),
    st.builds(r.UnregisterWorkerRequest, names),
    st.builds(r.HeartbeatRequest, names),
    st.builds(r.StartCheckpointRequest, u63, any_text),
    st.builds(r.EndCheckpointRequest, names, u63, any_text),
)
replies = st.one_of(
    st.builds(r.KeysReply, st.binary(max_size=99), u63, st.booleans()),
    st.builds(r.AdminReply, st.lists(any_text, max_size=4).map(tuple)),
    st.builds(
        r.RegisterWorkerResponse, st.integers(0, MAX_SEATS), st.lists(names, max_size=4).map(tuple), u63
    ),
    st.builds(r.UnregisterWorkerResponse, u63),
    st.builds(r.HeartbeatResponse, any_text, u63),
    st.builds(r.StartCheckpointResponse, any_text, u63),
    st.builds(r.EndCheckpointResponse, u63),
)
seconds = st.floats(0, 1e9)
statuses = st.builds(
    Status,
    any_text,
    st.sampled_from(get_args(Phase)),
    any_text,
    seconds,
    u64,
    u63,
    u32,
    st.lists(st.builds(SeatStatus, st.none() | u32, names, names, any_text, u63), max_size=4).map(tuple),
    u63,
    st.lists(fences, max_size=3).map(tuple),
    st.lists(st.builds(FenceCount, st.sampled_from(get_args(m.Cause)), u63), max_size=3).map(tuple),
    seconds,
    st.none() | completed,
)

#: Longer than any text that is not cut.
TOO_LONG = "x" * (MAX_TEXT + 1)
