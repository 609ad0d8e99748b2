"""The backend needs torch 2.15; with an older one there is nothing to test but its refusal."""

import torch

IS_OLD = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 15)
collect_ignore_glob = ["test_*.py"] if IS_OLD else []
