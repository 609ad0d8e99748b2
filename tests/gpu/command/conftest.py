"""Tests of the command that need no device. They run once: `make test` runs tests/gpu once more on the stand-in."""

from softs_fast.tensors import cuda

collect_ignore_glob = ["test_*.py"] if cuda.is_standin else []
