"""A market of mixed packages. softs 0.1.0 stands in a folder of its own beside the environment (`make setup` puts it there)."""

import sys
from pathlib import Path

from market import Market

#: Python path of each peer: the installed one, or a folder.
PATHS = {
    "softs_fast": None,
    "softs-0.1.2": None,
    "softs-0.1.0": str(Path(sys.prefix) / "peers" / "softs-0.1.0"),
}


class Fleet(Market):
    """A market; its peers are named by package and version."""

    def peer(self, role: str, version: str, **options: object) -> object:
        """Start a peer: `softs_fast`, `softs-0.1.2` or `softs-0.1.0`."""
        package = version.partition("-")[0]
        return getattr(self, role)(package, PATHS[version], **options)
