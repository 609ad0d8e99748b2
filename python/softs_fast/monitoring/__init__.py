"""Monitoring of a market, of strategies and of flows: snapshots, metrics made of them, and pages that show them.

Each name is loaded when it is asked for: a parameter server writes metrics without native modules.
"""

from typing import TYPE_CHECKING

from ..process import lazy

if TYPE_CHECKING:
    from .families import Family, metrics_text, unlabelled
    from .flow_status import (
        FlowFunction,
        FlowView,
        FlowWorkerView,
        flow_folder,
        flows,
        is_own_folder,
        socket_name,
    )
    from .prometheus import Collector, MetricsServer, render_market
    from .rates import LaneRate, Rates, SupplierRates, rates_between
    from .snapshot import ClientView, Observer, ProductView, SegmentView, Snapshot, SupplierView
    from .strategies import families_of, render_strategies
    from .text_server import Page, PageServer, TextServer, page_address
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "families": "Family metrics_text unlabelled",
            "flow_status": "FlowFunction FlowView FlowWorkerView flow_folder flows is_own_folder socket_name",
            "prometheus": "Collector MetricsServer render_market",
            "rates": "LaneRate Rates SupplierRates rates_between",
            "snapshot": "ClientView Observer ProductView SegmentView Snapshot SupplierView",
            "strategies": "families_of render_strategies",
            "text_server": "Page PageServer TextServer page_address",
        },
    )

__all__ = [
    "ClientView",
    "Collector",
    "Family",
    "FlowFunction",
    "FlowView",
    "FlowWorkerView",
    "LaneRate",
    "MetricsServer",
    "Observer",
    "Page",
    "PageServer",
    "ProductView",
    "Rates",
    "SegmentView",
    "Snapshot",
    "SupplierRates",
    "SupplierView",
    "TextServer",
    "families_of",
    "flow_folder",
    "flows",
    "is_own_folder",
    "metrics_text",
    "page_address",
    "rates_between",
    "render_market",
    "render_strategies",
    "socket_name",
    "unlabelled",
]
