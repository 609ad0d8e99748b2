"""Training data from teachers to a student at memory speed; a drop-in replacement for `softs`.

Importing this package does not import torch. The names that need torch (`SoftDataLoader`, `SoftIterableDataset`,
`Batch`, `make_collate_fn`, `DistillDataLoader`, `DistillIterableDataset`, `Checkpoints`, `Job`, `LiveData`, `ModelIOCatcher`,
`MixedLoader`, `RecordedDataset`, `ReplayLoader`, `TrainingState`, `switch_model`) are loaded on first access. Without the native modules
`softs_fast.paramserver` works, and what needs them says so; `NATIVE_ERROR` says why.
"""

import logging
from typing import TYPE_CHECKING, Any

from .errors import (
    BrokerTimeout,
    ConfigError,
    DamagedError,
    EndpointInUse,
    FleetError,
    ForkedError,
    GeneratorFailed,
    HelloError,
    NoBroker,
    NoModel,
    NoSupplier,
    NotFinite,
    PeerLost,
    SampleTimeout,
    SegmentError,
    SegmentExists,
    SegmentNotFound,
    SoftsError,
    SuppliersBusy,
    WireError,
)
from .process import lazy

try:
    from ._core import __version__
except ImportError as _error:
    # The wheel for any platform has no native modules; `softs_fast.paramserver` runs all the same.
    from importlib.metadata import version as _version

    NATIVE_ERROR: ImportError | None = ImportError(
        f"those of softs-fast are not here ({_error}); wheels have them for Linux on x86-64 (glibc 2.28, CPython 3.11 "
        "to 3.14), and other Linux machines build them with Rust and C++ by pip install --no-binary softs-fast "
        "softs-fast; softs-fast paramserver worker and softs_fast.paramserver.RemoteOptimizer work without them"
    )
    #: Version of the package.
    __version__ = _version("softs-fast")
else:
    NATIVE_ERROR = None
    from .configs import BatchConfig, TensorSpec, make_xy_config
    from .distill import SampleRef, StudentClient, Worker
    from .market import (
        Broker,
        BrokerStats,
        Client,
        CudaIpcMedium,
        EndpointConfig,
        FilesystemMedium,
        ShmMedium,
        Supplier,
        TCPMedium,
    )

if TYPE_CHECKING:
    from .catcher import ModelIOCatcher
    from .dataset import Batch, SoftDataLoader, SoftIterableDataset, make_collate_fn
    from .distill import DistillDataLoader, DistillIterableDataset, switch_model
    from .fleet import Fleet, RayFleet
    from .job import Checkpoints, Job, LiveData, TrainingState
    from .link import HostLink
    from .loader import MixedLoader, ReplayLoader
    from .record import RecordedDataset, RecordOptions

__all__ = [
    "Batch",
    "BatchConfig",
    "Broker",
    "BrokerStats",
    "BrokerTimeout",
    "Checkpoints",
    "Client",
    "ConfigError",
    "CudaIpcMedium",
    "DamagedError",
    "DistillDataLoader",
    "DistillIterableDataset",
    "EndpointConfig",
    "EndpointInUse",
    "FilesystemMedium",
    "Fleet",
    "FleetError",
    "ForkedError",
    "GeneratorFailed",
    "HelloError",
    "HostLink",
    "Job",
    "LiveData",
    "MixedLoader",
    "ModelIOCatcher",
    "NoBroker",
    "NoModel",
    "NoSupplier",
    "NotFinite",
    "PeerLost",
    "RayFleet",
    "RecordOptions",
    "RecordedDataset",
    "ReplayLoader",
    "SampleRef",
    "SampleTimeout",
    "SegmentError",
    "SegmentExists",
    "SegmentNotFound",
    "ShmMedium",
    "SoftDataLoader",
    "SoftIterableDataset",
    "SoftsError",
    "StudentClient",
    "Supplier",
    "SuppliersBusy",
    "TCPMedium",
    "TensorSpec",
    "TrainingState",
    "WireError",
    "Worker",
    "__version__",
    "make_collate_fn",
    "make_xy_config",
    "setup_logging",
    "switch_model",
]

_load, __dir__ = lazy(
    __name__,
    {
        "catcher": "ModelIOCatcher",
        "dataset": "Batch SoftDataLoader SoftIterableDataset make_collate_fn",
        "distill": "DistillDataLoader DistillIterableDataset switch_model",
        "fleet": "Fleet RayFleet",
        "job": "Checkpoints Job LiveData TrainingState",
        "link": "HostLink",
        "loader": "MixedLoader ReplayLoader",
        "record": "RecordOptions RecordedDataset",
    },
)


def setup_logging(level: int | str = logging.INFO) -> None:
    """Send log records to standard error, one line each; importing the package sets up no logging.

    Args:
        level: a level of `logging`, or its name in any case; an unknown name means INFO.
    """
    if isinstance(level, str):
        named = getattr(logging, level.upper(), logging.INFO)
        level = named if isinstance(named, int) else logging.INFO
    logging.basicConfig(
        level=level, format="%(asctime)s [%(name)s] %(levelname)s: %(message)s", datefmt="%H:%M:%S"
    )


def __getattr__(name: str) -> Any:
    if NATIVE_ERROR is not None and (name in __all__ or name in ("_core", "_kernels")):
        text = f"softs_fast.{name} needs native modules: {NATIVE_ERROR}"
        raise ImportError(text, name=f"{__name__}.{name}") from NATIVE_ERROR
    if name in __all__ and name not in ("Fleet", "HostLink", "RayFleet", "RecordOptions"):
        from .tensors import import_torch

        import_torch()
    return _load(name)
