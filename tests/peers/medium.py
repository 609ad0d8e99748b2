"""The role of a process with one medium, which does what it reads from its standard input.

It reports the address, then the answer to each line: `write OFFSET HEX`, `read SLOT`, `close`. It
ends, without closing anything, when its input does.
"""

import json
import sys
from typing import Any


def answer(value: object) -> None:
    """Report a value."""
    print(json.dumps({"event": "answer", "value": value}), flush=True)


def run_medium(package: Any, options: dict[str, Any]) -> None:
    """Own a medium or attach to one."""
    medium_cls = getattr(package, options["medium"])
    if options["owns"]:
        medium = medium_cls(options["address"], options["slot_size"], options["n_slots"], create=True)
    else:
        medium = medium_cls.attach(options["address"])
    answer(medium.address)
    for line in sys.stdin:
        match line.split():
            case ["write", offset, data]:
                answer(medium.write(int(offset), bytes.fromhex(data)))
            case ["read", slot]:
                answer(medium.read(int(slot)).hex())
            case ["close"]:
                medium.close()
                answer("closed")
