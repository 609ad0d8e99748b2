"""Markets of mixed fleets. softs 0.1.0 stands in a folder of its own beside the environment (`make setup` puts it there)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market
from process import Zygote
from segments import remove_abandoned, segments

#: Python path of each peer: the installed one, or a folder.
PATHS = {
    "softs_fast": None,
    "softs-0.1.2": None,
    "softs-0.1.0": str(Path(sys.prefix) / "peers" / "softs-0.1.0"),
}


class Fleet(Market):
    """A market whose peers are named by package and version."""

    def peer(self, role: str, version: str, **options: object) -> object:
        """Start a peer: `softs_fast`, `softs-0.1.2` or `softs-0.1.0`."""
        package = version.partition("-")[0]
        return getattr(self, role)(package, PATHS[version], **options)


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> None:
    """The processes that fork softs' peers live as long as the test run."""
    for version in ("softs-0.1.2", "softs-0.1.0"):
        Zygote.of("softs", PATHS[version])


@pytest.fixture
def fleet(short_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A fleet whose processes end with the test; softs' peers leave segments, so those are removed."""
    before = segments()
    fleet = Fleet(short_path, medium=getattr(request, "param", "shm"))
    yield fleet
    fleet.end()
    remove_abandoned(before)
