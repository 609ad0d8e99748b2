"""Averaging of weights between ranks: of all ranks, or of those that a rank takes as its donors."""

from softs_fast.averaging.decide import Decision, Member, Rules, decide

__all__ = ["Decision", "Member", "Rules", "decide"]
