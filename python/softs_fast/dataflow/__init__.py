"""Flows of rows through functions of models: a master that knows no tensor, and roles that compute.

`place` a `Role`, `call` its functions on columns, and run a `Flow` of them ([docs/dataflow.md]).

`store`, which keeps values of rows, is a face of its own: it works without a flow ([docs/dataflow_design.md]).
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
from .process.anew import Program, say_last
from .process.batch import Rows
from .process.by_hand import MasterLost, run_worker
from .workers.fleet_processes import declaration_of

__all__ = [
    "CallResult",
    "Dataset",
    "Flow",
    "FlowStep",
    "Interface",
    "Journal",
    "Layout",
    "MFCDef",
    "MasterLost",
    "Mesh",
    "Placement",
    "PostedCall",
    "Program",
    "Role",
    "Rows",
    "call",
    "data_transfer",
    "dataset",
    "declaration_of",
    "evaluate",
    "hook",
    "offload",
    "param_realloc",
    "place",
    "publish",
    "run_worker",
    "save",
    "say_last",
    "store",
]
