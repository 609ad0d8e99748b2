"""One peer in a process of its own: a fork of zygote.py that calls `run`.

Works with softs 0.1.0, softs 0.1.2 and softs_fast (the option `package` is the module name; which softs is a matter of
the Python path). Prints one JSON object per line; ends when its standard input does.
"""

import ctypes
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

import stamp
from medium import run_medium


def say(**event: Any) -> None:
    """Report an event to the test."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def wait_for_end() -> None:
    """Sleep until the test closes our standard input."""
    for _ in sys.stdin:
        pass


def hold_the_gil(seconds: float) -> None:
    """Sleep in C without giving up the GIL."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


def medium_of(package: Any, name: str) -> Any:
    """The class of a medium by its short name."""
    return {"shm": package.ShmMedium, "file": package.FilesystemMedium, "tcp": package.TCPMedium}[name]


def run_broker(package: Any, options: dict[str, Any]) -> None:
    """A broker, and a supplier beside it if the options of one are given."""
    endpoints = package.EndpointConfig(frontend=options["frontend"], backend=options["backend"])
    broker = package.Broker(endpoints, **options.get("settings", {}))
    broker.start()
    say(event="ready", pid=os.getpid())
    if "supplier" in options:
        threading.Thread(target=run_supplier, args=(package, options["supplier"]), daemon=True).start()
    wait_for_end()
    broker.stop()


def run_supplier(package: Any, options: dict[str, Any]) -> None:
    """A supplier of stamped samples."""
    if "folder" in options:
        os.chdir(options["folder"])
    slot_size = options["slot_size"]
    maker = stamp.Maker(slot_size)
    behaviour, amount = options.get("behaviour", "quick"), options.get("amount", 0.0)
    calls = 0

    def generate(product_id: str) -> Any:
        nonlocal calls
        calls += 1
        if options.get("verbose"):
            say(event="call", product=product_id, n=calls, at=time.time())
        if behaviour == "sleep" or (behaviour == "sleep_once" and calls == 1):
            time.sleep(amount)
        elif behaviour == "hold_gil":
            hold_the_gil(amount)
        elif behaviour == "exit":
            raise SystemExit
        elif behaviour == "raise":
            raise ValueError(f"boom in {product_id}")
        elif behaviour == "wrong_size":
            return b"x" * int(amount)
        elif behaviour == "wrong_type":
            return ["not", "bytes"]
        if options.get("verbose"):
            say(event="made", product=product_id, n=calls, at=time.time())
        return maker.make(product_id)

    supplier = package.Supplier(
        generate,
        options["patterns"],
        options["endpoint"],
        medium_of(package, options["medium"]),
        slot_size,
        **options.get("settings", {}),
    )
    supplier.start()
    say(event="ready", pid=os.getpid())
    wait_for_end()
    supplier.stop()


def run_client(package: Any, options: dict[str, Any]) -> None:
    """A client that takes samples one by one, checks each, and reports."""
    settings = options.get("settings", {})
    time.sleep(options.get("pause", 0.0))
    client = package.Client(
        options["endpoint"],
        medium_of(package, options["medium"]),
        options["slot_size"],
        options["n_slots"],
        **settings,
    )
    client.hello()
    say(event="ready", pid=os.getpid(), address=client.medium.address)
    checker = stamp.Checker()
    received = 0
    while received < options["n_samples"]:
        slot = client.request_sample(options["product"], timeout_ms=200)
        if slot is None:
            continue
        problem = checker.check(client.medium.read(slot), options["product"])
        if problem is not None:
            say(event="problem", problem=problem)
        client.release_slot(slot)
        received += 1
        if options.get("verbose"):
            say(event="sample", n=received, at=time.time())
    say(event="done", received=received, makers=sorted(checker.makers))
    wait_for_end()
    client.close()


RUN = {"broker": run_broker, "supplier": run_supplier, "client": run_client, "medium": run_medium}


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does, in the package that the options name."""
    RUN[role](importlib.import_module(options["package"]), options)
    if options["package"] == "softs":
        os._exit(0)  # it leaves threads that do not end
