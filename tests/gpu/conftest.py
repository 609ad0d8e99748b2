"""These tests need a CUDA device, or the stand-in for one: `make gpu`, or `python tests/gpu/standin`."""

import sys
from pathlib import Path

from softs_fast import cuda

# Not skipped but left out: `make test` runs them on the stand-in.
collect_ignore_glob = [] if cuda.n_devices() else ["test_*.py"]

# For `ranks`.
sys.path.append(str(Path(__file__).parents[1] / "collectives"))
