"""``softs-fast record`` and ``replay``: samples of a market into files, and from files into a market."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .options import AddParser, command, option, positive
from .table import say

if TYPE_CHECKING:
    from ..record import Recording

__all__ = ["add_commands"]

_RECORD_EPILOG = """\
examples:
  softs-fast record digits epoch --config digits.yaml
  softs-fast record digits epoch --config digits.yaml --samples 100000 --frontend ipc:///run/me/f

The product is recorded in the order of its sequence numbers, from the first one that the folder does not have. The file is
what BatchConfig.from_yaml reads. docs/record.md tells more."""

_REPLAY_EPILOG = """\
examples:
  softs-fast replay epoch                      # serve the recorded product in the market of this host
  softs-fast replay epoch --verify --backend ipc:///run/me/b
  softs-fast replay s3://bucket/epoch          # the same, from a store that fsspec knows
  softs-fast replay epoch --sequence 4711      # print what one sample is, and where it is from
  softs-fast replay epoch --to-parquet table   # write the samples to files of Parquet

docs/record.md tells more."""
_MOST_BATCH, _BATCH_BYTES = 256, 8 << 20


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of recordings."""
    text = "record the samples of a product until SIGINT or SIGTERM, or so many"
    parser = command(add_parser, "record", text, _record, _RECORD_EPILOG, endless=True)
    parser.add_argument("product", metavar="PRODUCT", help="product to order")
    parser.add_argument("folder", metavar="DIR", help="folder of the recording")
    option(
        parser, "--config", "YAML file of the tensors of a sample", type=Path, required=True, metavar="FILE"
    )
    option(parser, "--samples", "number of samples after which to stop", type=positive, shown="no end")
    option(
        parser, "--drop", "leave samples out, and count them, where the disk is too slow", action="store_true"
    )
    option(parser, "--frontend", shown="SOFTS_FAST_FRONTEND, or ipc:///tmp/softs_frontend.sock")
    option(parser, "--log-level", default="warning")
    text = (
        "serve a recording in a market until SIGINT or SIGTERM, print one of its samples, or export them all"
    )
    parser = command(add_parser, "replay", text, _replay, _REPLAY_EPILOG, endless=True)
    parser.add_argument(
        "folder", metavar="DIR", help="folder of the recording, or its URL in a store of fsspec"
    )
    instead = parser.add_mutually_exclusive_group()
    option(instead, "--sequence", "number of a sample to print instead", type=int)
    option(instead, "--to-webdataset", "empty folder for tars of WebDataset to write instead", metavar="DIR")
    option(instead, "--to-parquet", "empty folder for files of Parquet to write instead", metavar="DIR")
    option(parser, "--verify", "compare all samples with their checksums first", action="store_true")
    option(parser, "--backend", shown="SOFTS_FAST_BACKEND, or ipc:///tmp/softs_backend.sock")
    option(parser, "--log-level", default="warning")


def _record(arguments: argparse.Namespace) -> None:
    """Record samples of a product until a signal arrives, or there are so many.

    Raises:
        ConfigError: the config cannot be read, or the folder has a recording of something else.
        SoftsError: the recording cannot be written.
    """
    import yaml

    from .. import BatchConfig, RecordOptions, SoftDataLoader, setup_logging

    setup_logging(arguments.log_level)
    arguments.endless = arguments.samples is None
    try:
        config = BatchConfig.from_yaml(arguments.config)
    except (OSError, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        # Errors of YAML have several lines.
        text = " ".join(str(error).split())
        raise ConfigError(f"cannot read the config {arguments.config}: {text}") from None
    if not config.specs:
        raise ConfigError(
            f'the config {arguments.config} has no tensors, so there is nothing to record: list them as "specs"'
        )
    batch_size = _batch_size(config.nbytes(), arguments.samples)
    loader = SoftDataLoader(
        arguments.product,
        arguments.frontend,
        config,
        num_slots=4 * batch_size,
        request_timeout=None,
        ordered=True,
        batch_size=batch_size,
        rank=0,
        world_size=1,
        record=RecordOptions(arguments.folder, policy="drop" if arguments.drop else "wait"),
    )
    position = 0
    if Path(arguments.folder, "stream.json").exists():
        with _opened(arguments.folder, batch_config=config) as recording:
            position = int(recording.numbers[-1]) + 1 if len(recording) else 0
    loader.load_state_dict({"positions": {arguments.product: position}})
    with loader:
        say(f"recording {arguments.product} into {arguments.folder} from number {position} on")
        for n, _ in enumerate(loader, 1):
            if arguments.samples is not None and n * batch_size >= arguments.samples:
                break


def _batch_size(sample_bytes: int, n: int | None) -> int:
    """Return how many samples to take together: a divisor of their number, and some megabytes at most."""
    most = max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, sample_bytes)))
    return most if n is None else next(size for size in range(min(most, n), 0, -1) if n % size == 0)


def _replay(arguments: argparse.Namespace) -> None:
    """Serve a recording until a signal arrives, or print a sample, or export all.

    Raises:
        ConfigError: the folder is not a recording, or has no such sample.
        DamagedError: a file is missing, cut short or altered.
        HelloError: no broker has answered.
    """
    from .. import setup_logging
    from ..market import default_endpoint
    from ..record import replay_supplier, to_parquet, to_webdataset

    setup_logging(arguments.log_level)
    with _opened(arguments.folder, verify=arguments.verify) as recording:
        if arguments.sequence is not None:
            arguments.endless = False
            _print_sample(recording, arguments.sequence)
            return
        for target, export in ((arguments.to_webdataset, to_webdataset), (arguments.to_parquet, to_parquet)):
            if target is not None:
                arguments.endless = False
                export(recording, target)
                say(f"wrote {len(recording)} samples to {target}")
                return
        served = f"{len(recording)} samples of {recording.product}"
    backend = arguments.backend or default_endpoint("backend")
    with replay_supplier(arguments.folder, backend) as supplier:
        say(f"serving {served} at {backend}")
        supplier.wait()


@contextmanager
def _opened(folder: str | Path, **options: Any) -> Iterator[Recording]:
    """Open a recording.

    Raises:
        ConfigError: It cannot be read; or as for `Recording`.
    """
    from ..record import Recording

    try:
        with Recording(folder, **options) as recording:
            yield recording
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read the recording {folder}: {error}") from None


def _print_sample(recording: Any, number: int) -> None:
    origin = recording.origin(number)
    say(f"sample {number} of {origin['product']}: row {origin['row']} of {origin['file']}")
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(origin["began_s"]))
    say(
        f"recorded by rank {origin['rank']} on {origin['host']} with softs-fast {origin['version']}, begun {began}"
    )
    for name, value in recording.batch([number]).items():
        fields = getattr(value, "_fields", ("",))
        for field, tensor in zip(fields, value if isinstance(value, tuple) else (value,), strict=True):
            if field == "lengths":
                continue
            # The values of a ragged tensor have no batch axis.
            row = tensor if field == "values" and "lengths" in fields else tensor[0]
            label = f"{name}.{field}" if field else name
            text = f"  {label}: {str(row.dtype).removeprefix('torch.')} {list(row.shape)}"
            if row.is_floating_point() and (n_odd := int((~row.float().isfinite()).sum())):
                text += f", {n_odd} not finite"
            say(f"{text}, blake2b {_digest(row)}")


def _digest(tensor: Any) -> str:
    from ..tensors import import_torch

    data = (
        tensor.contiguous().reshape(-1).view(import_torch().uint8).numpy().tobytes()
        if tensor.numel()
        else b""
    )
    return hashlib.blake2b(data, digest_size=8).hexdigest()
