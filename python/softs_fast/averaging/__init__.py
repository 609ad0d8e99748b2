"""Averaging of weights between ranks: of all ranks, or of those that a rank takes as its donors."""

from softs_fast.averaging.average_all import AverageAll
from softs_fast.averaging.decide import Decision, Member, Rules, decide
from softs_fast.averaging.diloco import DiLoCo

__all__ = ["AverageAll", "Decision", "DiLoCo", "Member", "Rules", "decide"]
