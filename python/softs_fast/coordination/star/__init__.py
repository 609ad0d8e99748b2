"""Collectives through rank 0 of a group, over gRPC: for few ranks that need encryption, identity or one port."""

from .metrics import render_metrics
from .options import Epoch, StarOptions
from .strategy import GrpcStrategy

__all__ = ["Epoch", "GrpcStrategy", "StarOptions", "render_metrics"]
