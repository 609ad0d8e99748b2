"""Flows of rows through functions of models: a master that knows no tensor, and roles that compute.

`place` a `Role`, `call` its functions on columns, and run a `Flow` of them ([docs/dataflow.md]).
"""

from .declare.calls import Interface, MFCDef, call
from .declare.datasets import Dataset, dataset
from .declare.hooks import evaluate, hook, offload, param_realloc, publish, save
from .declare.layout import Layout
from .declare.roles import Mesh, Placement, Role, place
from .declare.transfer import data_transfer
from .engine.results import CallResult, FlowStep
from .flow.flow import Flow, PostedCall
from .journal.options import Journal
from .process.batch import Rows

__all__ = [
    "CallResult",
    "Dataset",
    "Flow",
    "FlowStep",
    "Interface",
    "Journal",
    "Layout",
    "MFCDef",
    "Mesh",
    "Placement",
    "PostedCall",
    "Role",
    "Rows",
    "call",
    "data_transfer",
    "dataset",
    "evaluate",
    "hook",
    "offload",
    "param_realloc",
    "place",
    "publish",
    "save",
]
