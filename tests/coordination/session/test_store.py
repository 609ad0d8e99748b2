"""The store of a session as torch uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
from coordinator_process import Cluster

RANK = Path(__file__).with_name("gloo_rank.py")


def test_gloo_meets_through_the_coordinator(cluster: Cluster) -> None:
    coordinator = cluster.coordinator("--world-size", "3")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), coordinator.address, str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(3)
    ]
    results = []
    try:
        for rank in ranks:
            out, errors = rank.communicate(timeout=50)
            assert rank.returncode == 0, errors.decode()
            results.append(json.loads(out))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [result["sum"] for result in results] == [[3.0, 6.0]] * 3
    for result in results:
        assert result["missing"].startswith("PeerLost"), "an error of ours comes through torch"
        assert result["number"] == 7
        assert result["delete"] == [True, False]
