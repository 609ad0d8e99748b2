"""Averaging of weights between ranks: of all ranks, or of those that a rank takes as its donors."""

from softs_fast.averaging.average_all import AverageAll
from softs_fast.averaging.board import Board, Donation, Event, Fetch, Refused
from softs_fast.averaging.decide import Decision, Member, Rules, decide
from softs_fast.averaging.diloco import DiLoCo
from softs_fast.averaging.lineage import replay
from softs_fast.averaging.meeting import meet_by_mpi, meet_in_group
from softs_fast.averaging.schedule import Schedule
from softs_fast.averaging.selective import SelectiveAveraging
from softs_fast.averaging.takeover import Takeover

__all__ = [
    "AverageAll",
    "Board",
    "Decision",
    "DiLoCo",
    "Donation",
    "Event",
    "Fetch",
    "Member",
    "Refused",
    "Rules",
    "Schedule",
    "SelectiveAveraging",
    "Takeover",
    "decide",
    "meet_by_mpi",
    "meet_in_group",
    "replay",
]
