"""A process with one medium, which does what it reads from its standard input.

Arguments: package, class, `own` or `attach`, address (`-`: none), slot size, number of slots. It says its
address, then answers each line: `write OFFSET HEX`, `prepare`, `write_prepared OFFSET HEX`, `read SLOT`,
`close`. It ends, without closing anything, when its input does.
"""

import importlib
import sys


def main(package: str, name: str, role: str, address: str, slot_size: str, num_slots: str) -> None:
    medium_cls = getattr(importlib.import_module(f"{package}.market.mediums"), name)
    if role == "own":
        where = None if address == "-" else address
        medium = medium_cls(where, int(slot_size), int(num_slots), create=True)
    else:
        medium = medium_cls.attach(address)
    print(medium.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["write", offset, data]:
                print(medium.write(int(offset), bytes.fromhex(data)), flush=True)
            case ["prepare"]:
                print(medium.prepare(), flush=True)
            case ["write_prepared", offset, data]:
                print(medium.write_prepared(int(offset), bytes.fromhex(data)), flush=True)
            case ["read", slot]:
                print(medium.read(int(slot)).hex(), flush=True)
            case ["close"]:
                medium.close()
                print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
