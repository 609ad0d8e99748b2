"""The arguments of ``softs-fast paramserver``, ``paramcontrol`` and ``evaluate``."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = [
    "CONTROL_EPILOG",
    "EPILOG",
    "EVALUATE_EPILOG",
    "add_arguments",
    "add_control_arguments",
    "add_evaluate_arguments",
]

EPILOG = """\
examples:
  softs-fast paramserver digits:job --world 2 --rounds 50 --batch 32
  softs-fast paramserver digits:job --world 4 --rounds 1000 --listen 0.0.0.0:8000 --tls auto
  softs-fast paramserver digits:job --world 2 --rounds 50 --url https://some.tunnel.example

It prints the invite with which workers are started, and the owner's page. Started again with the same --state, it goes on
where the file is. docs/paramserver.md tells more. It needs uvicorn: pip install 'softs-fast[server]'."""

CONTROL_EPILOG = """\
examples:
  softs-fast paramcontrol status
  softs-fast paramcontrol pause --state /data/run.state
  softs-fast paramcontrol kick --worker 3f0a...

It reads the owner's key from the file that the server writes beside its state."""

EVALUATE_EPILOG = """\
examples:
  softs-fast evaluate digits:job
  softs-fast evaluate digits:job trained_model.best.pth"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server."""
    parser.add_argument("job", metavar="MODULE:JOB", help="what is trained; workers load the same file")
    run = parser.add_argument_group("run")
    run.add_argument("--world", type=int, required=True, metavar="N", help="workers that the run expects")
    run.add_argument("--rounds", type=int, required=True, metavar="N", help="steps after which it ends")
    run.add_argument(
        "--batch", type=int, default=32, metavar="N", help="samples of a worker's step (default: 32)"
    )
    run.add_argument(
        "--mode", choices=("bsp", "ssp", "async"), default="bsp",
        help="all push, then a step; each push is a step, with bounded lead; buffered pushes (default: bsp)",
    )  # fmt: skip
    run.add_argument(
        "--quorum", metavar="N|world", help="pushes that a round needs (default: half of the world)"
    )
    run.add_argument("--round-samples", type=int, metavar="N", help="a round closes with so many samples")
    run.add_argument(
        "--round-deadline", type=float, metavar="SECONDS",
        help="a round with a quorum closes then (default: the times of earlier pushes decide)",
    )  # fmt: skip
    run.add_argument("--slack", type=int, default=0, metavar="N", help="lead of a worker in mode ssp")
    run.add_argument("--buffer", type=int, default=1, metavar="N", help="pushes of a step in mode async")
    run.add_argument(
        "--max-age", type=int, default=16, metavar="N", help="versions that a push may be old in mode async"
    )
    run.add_argument(
        "--scale", choices=("world", "none"),
        help="multiply the learning rate by the workers averaged (default: world, none with --local-steps)",
    )  # fmt: skip
    run.add_argument("--local-steps", type=int, default=0, metavar="N", help="steps of a worker for one push")
    run.add_argument("--clip", type=float, default=0.0, metavar="NORM", help="greatest norm of a push")
    run.add_argument(
        "--norm-guard", type=float, default=10.0, metavar="TIMES",
        help="scale a push down to so many median norms of recent ones; 0 takes any (default: 10)",
    )  # fmt: skip
    run.add_argument(
        "--lease", type=float, default=20.0, metavar="SECONDS", help="a worker silent for so long is gone"
    )
    run.add_argument("--max-workers", type=int, default=256, metavar="N", help="members at a time, at most")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--samples", type=int, default=0, metavar="N",
        help="of the data: the server hands out ranges, each once per epoch (default: each worker takes those of its rank)",
    )  # fmt: skip
    data.add_argument("--epochs", type=int, metavar="N", help="of the data, with --samples")
    data.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of samples")
    wire = parser.add_argument_group("wire")
    wire.add_argument(
        "--codec", choices=("f32", "bf16", "int8", "top_k"), default="bf16", help="of pushes (default: bf16)"
    )
    wire.add_argument(
        "--top-k", type=float, default=0.01, metavar="FRACTION", help="elements that top_k sends"
    )
    wire.add_argument(
        "--pull", choices=("f32", "bf16"), default="f32", help="of weights (default: f32, exact)"
    )
    wire.add_argument("--no-planes", action="store_true", help="do not compress")
    wire.add_argument("--no-buffers", action="store_true", help="do not average buffers such as BatchNorm's")
    net = parser.add_argument_group("address")
    net.add_argument(
        "--listen",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="port 0 takes a free one (default: %(default)s)",
    )
    net.add_argument("--url", help="of the tunnel or proxy in front of the server, for the invite")
    net.add_argument("--tls", choices=("auto",), help="make a certificate, which the invite pins")
    net.add_argument("--tls-cert", type=Path, metavar="PEM", help="certificate")
    net.add_argument("--tls-key", type=Path, metavar="PEM", help="key of it")
    net.add_argument(
        "--allow-plain", action="store_true", help="be reachable from other machines without TLS"
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--state", type=Path, default=Path("paramserver.state"), metavar="FILE",
        help="what a server after this one needs (default: %(default)s)",
    )  # fmt: skip
    files.add_argument(
        "--save-every", type=int, default=1, metavar="N", help="steps between two files (default: 1)"
    )
    files.add_argument(
        "--output", type=Path, metavar="FILE", help="the trained model (default: trained_model.pth)"
    )
    files.add_argument(
        "--upload-memory", type=int, default=8 << 30, metavar="BYTES", help="for pushes (default: 8 GiB)"
    )
    files.add_argument("--safetensors", action="store_true", help="write the model as safetensors")
    evaluation = parser.add_argument_group("evaluation")
    evaluation.add_argument(
        "--evaluate-every", type=int, default=0, metavar="N", help="steps between two evaluations"
    )
    evaluation.add_argument(
        "--stop-after", type=int, metavar="N", help="evaluations without a better result that end the run"
    )
    evaluation.add_argument("--lower-is-better", action="store_true", help="of two results of evaluations")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default: info)"
    )


def add_control_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of what the owner does."""
    parser.add_argument(
        "action", choices=("status", "watch", "start", "pause", "resume", "kick", "stop"), help="what to do"
    )
    parser.add_argument("--worker", default="", metavar="ID", help="for kick")
    parser.add_argument(
        "--state", type=Path, default=Path("paramserver.state"), metavar="FILE",
        help="that of the server (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of an evaluation."""
    parser.add_argument("job", metavar="MODULE:JOB", help="has an `evaluate`")
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path("trained_model.pth"), metavar="FILE",
        help="what a server has written (default: %(default)s)",
    )  # fmt: skip
