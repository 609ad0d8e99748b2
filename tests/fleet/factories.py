"""What fleets of the tests run: functions that their worker processes can import."""

import multiprocessing
import os
import sys
import threading
import time

import numpy as np

import softs_fast as sf

CONFIG = sf.BatchConfig([sf.TensorSpec("pid", (), "int64"), sf.TensorSpec("gpu", (), "int64")])


def sample() -> dict[str, np.ndarray]:
    gpu = int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))
    return {"pid": np.array(os.getpid()), "gpu": np.array(gpu)}


def make_supplier() -> sf.Supplier:
    print("one line", flush=True)
    print("and \udcff another", file=sys.stderr)
    return sf.Supplier(generator_fn=lambda product_id: sample(), product_ids=[".*"], batch_config=CONFIG)


def make_worker() -> sf.Worker:
    return sf.Worker(generator_fn=lambda model_id, model_cfg: sample(), batch_config=CONFIG)


def make_slow_starter() -> sf.Supplier:
    time.sleep(3600)
    return make_supplier()


def make_once(path: str) -> sf.Supplier:
    """A supplier in the first process that makes a file, an error in the others."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    return make_supplier()


def make_parent() -> sf.Supplier:
    """A supplier beside a process of its own, as a teacher has for its DataLoader."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3600,), daemon=True)
    child.start()
    return make_supplier()


class Freed:
    """A generator that says which thread frees it."""

    def __call__(self, product_id: str) -> dict[str, np.ndarray]:
        return sample()

    def __del__(self) -> None:
        print("freed by", threading.current_thread().name, flush=True)


def make_freed() -> sf.Supplier:
    return sf.Supplier(generator_fn=Freed(), product_ids=["p"], batch_config=CONFIG)


def make_printer() -> sf.Supplier:
    print("1 %\r50 %\r100 %\r\ndone", end="", flush=True)
    print("x" * 200_000, end="", flush=True)
    return make_supplier()


def raise_an_error() -> sf.Supplier:
    raise RuntimeError("no weights in /models")


def make_a_list() -> list[int]:
    return []


def end_at_once() -> sf.Supplier:
    print("this is the last line")
    os._exit(3)


def make_quitter() -> sf.Supplier:
    """A supplier that ends its thread in each call."""

    def generate(product_id: str) -> bytes:
        sys.exit(3)

    return sf.Supplier(generator_fn=generate, product_ids=[".*"], batch_config=CONFIG)


def make_stuck() -> sf.Supplier:
    """A supplier that holds the GIL in each call, for ever."""

    def generate(product_id: str) -> bytes:
        print("a call begins", flush=True)
        import ctypes

        while True:
            ctypes.PyDLL(None).sleep(3600)

    return sf.Supplier(generator_fn=generate, product_ids=[".*"], batch_config=CONFIG)


class Idle:
    """A worker of nothing."""

    def __init__(self) -> None:
        self._is_stopped = threading.Event()

    def start(self) -> None: ...

    def stop(self) -> None:
        self._is_stopped.set()

    def wait(self) -> None:
        self._is_stopped.wait()


class Unstopped(Idle):
    """A worker that cannot be stopped."""

    def stop(self) -> None:
        raise RuntimeError("it cannot be stopped")


class Busy(Idle):
    """A worker of which the call does not end; it makes a file when it is told to."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def stop(self) -> None:
        open(self._path, "x").close()
        time.sleep(3600)


def make_idle_once(path: str) -> Idle:
    """A worker of nothing in the first process that makes a file; the others take for ever."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        time.sleep(3600)
    return Idle()


def make_slow() -> sf.Supplier:
    """A supplier of numbered samples, of which each takes 30 ms."""

    def generate(product_id: str, sequence: int) -> dict[str, np.ndarray]:
        time.sleep(0.03)
        return {"pid": np.array(os.getpid()), "gpu": np.array(sequence)}

    return sf.Supplier(generator_fn=generate, product_ids=[".*"], batch_config=CONFIG)


def make_slow_once(path: str) -> sf.Supplier:
    """A slow supplier in the first process that makes a file, an error in the others."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    return make_slow()


class Impatient(sf.Supplier):
    """A supplier that ends in the midst of a call, unless it is told how long to wait."""

    def stop(self, *, timeout_s: float = 0.0) -> None:
        if timeout_s == 0.0:
            os._exit(3)
        super().stop(timeout_s=timeout_s)


def make_gated(folder: str) -> sf.Supplier:
    """A supplier that makes a file for each call, and ends none before there is a file "go"."""

    def generate(product_id: str, sequence: int) -> dict[str, np.ndarray]:
        open(os.path.join(folder, f"{sequence} {os.getpid()}"), "x").close()
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.002)
        return {"pid": np.array(os.getpid()), "gpu": np.array(sequence)}

    return Impatient(generator_fn=generate, product_ids=[".*"], batch_config=CONFIG)
