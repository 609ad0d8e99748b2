"""The arguments of ``softs-fast``. The code of a command is loaded when the command runs."""

from __future__ import annotations

import argparse
import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import NATIVE_ERROR, __version__
from ..errors import ConfigError
from . import coordinator_arguments, flow_worker, paramserver_arguments, paramworker

__all__ = ["parse"]

#: As in `softs_fast.market`, which is loaded when it is needed.
_FRONTEND, _BACKEND = "ipc:///tmp/softs_frontend.sock", "ipc:///tmp/softs_backend.sock"
_VARIABLE = "SOFTS_FAST_FRONTEND"
_ENDPOINT = f"the broker's frontend, for example {_FRONTEND} or tcp://127.0.0.1:5555"
_LOG_LEVELS = ("debug", "info", "warning", "error")
#: Bytes of one sample in a bench at most.
_MAX_SIZE = 1 << 30
#: As in `softs_fast.fleet`, which is loaded when it is needed.
_MAX_WORKERS = 1024


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments.

    Returns:
        The options of the command; among them `run`, the function that takes them, and `endless`, whether only a signal
        ends the command.

    Raises:
        SystemExit: the arguments are wrong, or ask for help.
    """
    parser = argparse.ArgumentParser(
        prog="softs-fast",
        description="Training data from teachers to a student at memory speed: run a broker, show a market, measure "
        "this machine.",
        epilog="softs-fast COMMAND --help tells more about a command.",
    )
    parser.add_argument("--version", action="version", version=f"softs-fast {__version__}")
    add_parser = parser.add_subparsers(metavar="COMMAND", required=True).add_parser
    _add_broker(add_parser)
    _add_worker(add_parser)
    _add_run(add_parser)
    _add_stats(add_parser)
    _add_top(add_parser)
    _add_coordinator(add_parser)
    _add_paramserver(add_parser)
    _add_paramworker(add_parser)
    _add_flow_worker(add_parser)
    _add_bench(add_parser)
    _add_gpu(add_parser)
    arguments = parser.parse_args(argv)
    arguments.endless = arguments.is_endless(arguments)
    return arguments


#: Adds a command: `add_parser` of what `ArgumentParser.add_subparsers` returns.
_AddParser = Callable[..., argparse.ArgumentParser]


def _add_broker(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "broker",
        "run a broker until SIGINT or SIGTERM",
        """\
examples:
  softs-fast broker
  softs-fast broker --frontend ipc:///run/me/f --backend ipc:///run/me/b
  softs-fast broker --frontend tcp://127.0.0.1:5555 --backend tcp://127.0.0.1:5556 --prometheus 127.0.0.1:9464""",
    )
    parser.add_argument("--frontend", metavar="ENDPOINT", help="where clients connect (default: %(default)s)")
    parser.add_argument(
        "--backend", metavar="ENDPOINT", help="where suppliers connect (default: %(default)s)"
    )
    parser.add_argument(
        "--control",
        metavar="ENDPOINT",
        help="where students connect to set the model; served if it or --control-pub is given, or no endpoint is",
    )
    parser.add_argument("--control-pub", metavar="ENDPOINT", help="where workers receive models")
    parser.add_argument(
        "--log-level", choices=_LOG_LEVELS, default="info", help="what to log (default: %(default)s)"
    )
    parser.add_argument(
        "--max-queue-per-product",
        type=_count,
        default=16,
        metavar="N",
        help="orders of one product that wait here; more wait at their clients (default: %(default)s)",
    )
    parser.add_argument(
        "--max-order-attempts",
        type=_count,
        default=5,
        metavar="N",
        help="an order that fails so often is given up (default: %(default)s)",
    )
    parser.add_argument(
        "--prometheus", metavar="HOST:PORT", help="serve metrics over HTTP there; port 0 takes a free one"
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="let TCP endpoints and metrics be reachable from other machines; there is no authentication",
    )
    parser.set_defaults(
        frontend=_FRONTEND,
        backend=_BACKEND,
        run=_loaded("broker"),
        is_endless=lambda arguments: True,
    )


def _add_worker(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "worker",
        "run workers of a broker until SIGINT or SIGTERM, or until the leader stops them",
        """\
examples:
  softs-fast worker teachers:make_worker
  softs-fast worker my.package.teachers:make_worker --count 4 --gpus 0,1

The function is called in each process and returns a Worker or a Supplier. Without endpoints of its own, and without
options, it connects to the broker that SOFTS_FAST_BACKEND and SOFTS_FAST_CONTROL_PUB name.""",
    )
    parser.add_argument("factory", metavar="MODULE:FUNCTION", help="returns a worker that is not started")
    _add_count_and_gpus(parser)
    parser.add_argument("--backend", metavar="ENDPOINT", help="the broker's endpoint for suppliers")
    parser.add_argument("--control-pub", metavar="ENDPOINT", help="where the broker announces models")
    parser.set_defaults(run=_loaded("worker"), is_endless=lambda arguments: True)


def _add_run(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "run",
        "run a command beside a broker and workers of its own",
        """\
examples:
  softs-fast run --worker teachers:make_worker --count 4 -- python train.py
  softs-fast run --worker teachers:make_worker --gpus 0,1 -- torchrun --nproc-per-node 2 train.py

The command starts when all workers serve, and finds the broker by SOFTS_FAST_FRONTEND, SOFTS_FAST_CONTROL and
SOFTS_FAST_CONTROL_PUB: the defaults of StudentClient and DistillIterableDataset. Its exit status is that of this one.""",
    )
    parser.add_argument(
        "--worker", required=True, metavar="MODULE:FUNCTION", help="returns a worker that is not started"
    )
    _add_count_and_gpus(parser)
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command to run"
    )
    parser.set_defaults(run=_loaded("run"), is_endless=lambda arguments: False)


def _add_count_and_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--count", type=_workers, default=1, metavar="N", help="worker processes (default: %(default)s)"
    )
    parser.add_argument(
        "--gpus", type=_devices, metavar="I,J", help="devices, of which worker i sees only one, in turn"
    )
    parser.add_argument(
        "--log-level", choices=_LOG_LEVELS, default="warning", help="what to log (default: %(default)s)"
    )


def _add_stats(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "stats",
        "print the peers of a broker and their counters, and flows",
        f"""\
examples:
  softs-fast stats {_FRONTEND}
  softs-fast stats {_FRONTEND} --json | jq .stats.pending_orders
  softs-fast stats {_FRONTEND} --watch 5

Fleets and flows are those of this user on this host. A broker of softs tells less: no clients and no suppliers.""",
    )
    _add_frontend(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line instead of tables"
    )
    parser.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="print again every so many seconds (default: 2) until SIGINT or SIGTERM",
    )
    parser.set_defaults(run=_loaded("stats"), is_endless=lambda arguments: arguments.watch is not None)


def _add_frontend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        nargs="?",
        default=os.environ.get(_VARIABLE) or None,
        help=f"{_ENDPOINT}; default: that of {_VARIABLE}, or without it fleets and flows alone",
    )


def _add_top(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "top",
        "watch a market and flows live",
        f"""\
examples:
  softs-fast top {_FRONTEND}
  softs-fast top {_FRONTEND} --once | head
  softs-fast top

Fleets and flows are those of this user on this host. THREAD is what the thread of a flow does, and for how long; QUIET the time
since a call of it has ended, SINCE how long the oldest call runs, or a worker is inside of it.

PRODUCER is the share of time in which a client waits while its suppliers are busy: add suppliers.
CONSUMER is the share in which suppliers idle because samples are finished or held: the client is slower.
Without a terminal it prints plain text, one screen after the other.""",
    )
    _add_frontend(parser)
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="interval between two screens (default: 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one screen as plain text, after one interval"
    )
    parser.set_defaults(run=_loaded("top"), is_endless=lambda arguments: not arguments.once)


def _add_coordinator(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "coordinator",
        "run the coordinator of a training until SIGINT or SIGTERM, or ask one that runs",
        coordinator_arguments.EPILOG,
    )
    coordinator_arguments.add_arguments(parser, lambda name: _loaded("coordinator", name))


def _add_paramserver(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "paramserver",
        "run a parameter server until its training is done",
        paramserver_arguments.EPILOG,
    )
    paramserver_arguments.add_arguments(parser)
    parser.set_defaults(run=_loaded("paramserver"), is_endless=lambda arguments: False)
    parser = _command(
        add_parser,
        "paramcontrol",
        "show a parameter server that runs, or tell it what to do",
        paramserver_arguments.CONTROL_EPILOG,
    )
    paramserver_arguments.add_control_arguments(parser)
    parser.set_defaults(run=_loaded("paramcontrol"), is_endless=lambda arguments: arguments.action == "watch")
    parser = _command(
        add_parser,
        "evaluate",
        "evaluate a model that a parameter server has trained",
        paramserver_arguments.EVALUATE_EPILOG,
    )
    paramserver_arguments.add_evaluate_arguments(parser)
    parser.set_defaults(run=_loaded("evaluate"), is_endless=lambda arguments: False)


def _add_paramworker(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser, "paramworker", "take part in the training of a parameter server", paramworker.EPILOG
    )
    paramworker.add_arguments(parser)
    parser.set_defaults(run=_loaded("paramworker"), is_endless=lambda arguments: False)


def _add_flow_worker(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser, "flow-worker", "run one worker of a flow on several hosts", flow_worker.EPILOG
    )
    flow_worker.add_arguments(parser)
    parser.set_defaults(run=_loaded("flow_worker"), is_endless=lambda arguments: False)


def _add_bench(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "bench",
        "measure this machine with a market of its own",
        """\
examples:
  softs-fast bench
  softs-fast bench --seconds 30 --size 64 4096 4194304 --json""",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=8.0,
        metavar="S",
        help="time for all measurements together (default: %(default)g)",
    )
    parser.add_argument(
        "--size",
        type=_size,
        nargs="+",
        default=[64, 600_000],
        metavar="BYTES",
        help="bytes of one sample (default: 64 600000)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=_loaded("bench"), is_endless=lambda arguments: False)


def _add_gpu(add_parser: _AddParser) -> None:
    parser = _command(
        add_parser,
        "gpu",
        "check and measure the CUDA side on this machine's GPU",
        """\
examples:
  softs-fast gpu --quick
  softs-fast gpu --json results/ --only deaths,slot-write

Each step runs in processes of its own, within a limit. The file is written again after each step. Exit status: 0 all
passed, 1 a step failed, 2 there is no GPU that can be used, and why.""",
    )
    parser.add_argument("--quick", action="store_true", help="take 5 minutes at most, instead of 18")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where the result goes; in a folder, gpu-DEVICE.json (default: softs-fast-gpu.json)",
    )
    parser.add_argument(
        "--only", type=_names, metavar="STEP,STEP", help="run these steps, by the names that the table shows"
    )
    parser.set_defaults(run=_loaded("gpu"), is_endless=lambda arguments: False)


def _command(add_parser: _AddParser, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    return add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _loaded(command: str, function: str = "run") -> Callable[[argparse.Namespace], None]:
    def run(arguments: argparse.Namespace) -> None:
        try:
            module = importlib.import_module(f".{command}", __package__)
        except ImportError:
            if NATIVE_ERROR is None:
                raise
            raise ConfigError(f"softs-fast {command} needs native modules: {NATIVE_ERROR}") from None
        getattr(module, function)(arguments)

    return run


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0.01 <= seconds <= 86_400):
        raise argparse.ArgumentTypeError(f"{text} is not between 0.01 and 86400 seconds")
    return seconds


def _count(text: str) -> int:
    return _whole_number(text, 0xFFFF_FFFF)


def _workers(text: str) -> int:
    return _whole_number(text, _MAX_WORKERS)


def _devices(text: str) -> list[int]:
    devices = [int(part) for part in text.split(",")]
    if min(devices) < 0:
        raise argparse.ArgumentTypeError(f"{text} has a number below 0")
    return devices


def _names(text: str) -> list[str]:
    return text.split(",")


def _size(text: str) -> int:
    return _whole_number(text, _MAX_SIZE)


def _whole_number(text: str, most: int) -> int:
    number = int(text)
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {most}")
    return number


# argparse names the type of an argument that is no number at all.
_seconds.__name__ = "number of seconds"
_count.__name__ = _size.__name__ = _workers.__name__ = "whole number"
_devices.__name__ = "list of devices"
