"""Files that survive crashes: replaced at once, appended to, locked, and vouched for by checksums.

| for | write | read |
|---|---|---|
| a file that is replaced | `write_file` | `read_private` |
| a file that must not be read when damaged | `write_sealed` | `read_sealed` |
| records, one after the other | `Log.append`, `Log.replace` | `Log.records` |
| a folder of files | `write_manifest`, then `publish_folder` | `verify_manifest` |

`Lock` keeps other processes out. What is damaged raises `DamagedError`.
"""

from .files import (
    open_plain,
    private_folder,
    publish_folder,
    read_private,
    sync_folder,
    write_all,
    write_file,
)
from .lock import Lock
from .log import Log
from .manifest import MANIFEST, verify_manifest, write_manifest
from .sealed import read_sealed, write_sealed

__all__ = [
    "MANIFEST",
    "Lock",
    "Log",
    "open_plain",
    "private_folder",
    "publish_folder",
    "read_private",
    "read_sealed",
    "sync_folder",
    "verify_manifest",
    "write_all",
    "write_file",
    "write_manifest",
    "write_sealed",
]
