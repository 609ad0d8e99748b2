"""Hosts with a coordinator and workers, which end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import networks
import pytest
from coordinator_process import Cluster
from site_of_hosts import SiteOfHosts


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SiteOfHosts]:
    """A network with a host for the coordinator; more are added."""
    if reason := networks.why_not():
        pytest.skip(reason)
    with networks.Network() as net:
        site = SiteOfHosts(net, cluster, tmp_path)
        yield site
        site.end()
