"""`stream.json`: what a recording is of, and its closed shards. It is replaced at once, so it is whole at any time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from ..configs import BatchConfig
from ..durable import write_file
from ..errors import ConfigError, DamagedError, WireError
from ..records import U32, Count, Json, Record, field, most, plain, span
from .folder import Folder

__all__ = [
    "MANIFEST",
    "ShardFacts",
    "StreamFacts",
    "rank_folder",
    "rank_folders",
    "read_manifest",
    "shard_name",
    "write_manifest",
]

#: Name of the file in its folder.
MANIFEST = "stream.json"
_FORMAT = 1
_MOST_BYTES = 1 << 30
_MOST_SHARDS = 1_000_000
_MOST_TENSORS = 4096
#: A Unix time that has a date, in the year 5138.
_MOST_TIME_S = 1e11
#: Each sample has a number of 64 bits.
_LEAST_SAMPLE_BYTES = 8

_Text = Annotated[str, most(256)]


class TensorFacts(Record):
    """A tensor of a sample, see `TensorSpec`."""

    name: Annotated[str, most(4096, least=1)]
    shape: Annotated[tuple[Count, ...], most(64)]
    dtype: _Text
    codec: Annotated[str, most(4096)] | None = None
    ragged: bool = False


class ShardFacts(Record):
    """A closed shard.

    Attributes:
        file: Name in the folder.
        n_samples: Number of samples.
        first, last: Numbers of its first and last sample.
        n_bytes: Length of the file.
        tensors: Bytes and CRC-32 of each tensor by name.
    """

    file: _Text
    n_samples: Annotated[int, span(1, 1 << 48)]
    first: Count
    last: Count
    n_bytes: Count
    tensors: Annotated[dict[_Text, tuple[Count, U32]], most(_MOST_TENSORS)]


class StreamFacts(Record):
    """A recording of one rank.

    Attributes:
        recording: Random name of the recording, which its shards have too.
        product: Product that was recorded.
        ordered: Whether numbers are sequence numbers of the stream; otherwise they count the samples as they were handed out.
        rank, world_size: Rank that recorded: its samples have the numbers rank, rank + world_size, ...
        tensors: Config of the samples as it was sent.
        digest: Digest of the config, which the shards have too.
        shard_bytes: Bytes of samples per shard.
        host, version, began_s: Host, version of the package and Unix time at which the recording began.
        dropped: Samples that the policy `"drop"` has left out.
        shards: Closed shards.
    """

    recording: _Text
    product: _Text
    ordered: bool
    rank: Annotated[int, span(0, 1 << 20)]
    world_size: Annotated[int, span(1, 1 << 20)]
    tensors: Annotated[tuple[TensorFacts, ...], most(_MOST_TENSORS)]
    digest: _Text
    shard_bytes: Count
    host: _Text
    version: _Text
    began_s: Annotated[float, span(0.0, _MOST_TIME_S)]
    format: int = _FORMAT
    dropped: Count = 0
    shards: Annotated[tuple[ShardFacts, ...], most(_MOST_SHARDS)] = field(default=())

    @classmethod
    def of(cls, config: BatchConfig, **facts: Any) -> Self:
        """Return the facts of a recording that begins."""
        specs = config.to_dict()["specs"]
        tensors = tuple(TensorFacts(**{**spec, "shape": tuple(spec["shape"])}) for spec in specs)
        digest = hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()
        return cls(tensors=tensors, digest=digest, **facts)

    @property
    def config(self) -> BatchConfig:
        """Config of the samples as it was sent.

        Raises:
            ConfigError: A codec of a tensor is not registered.
        """
        return BatchConfig([plain(one) for one in self.tensors])

    def difference(self, **expected: object) -> str | None:
        """Describe the first of some facts that is another one; return None if all are as expected."""
        for name, value in expected.items():
            if (found := getattr(self, name)) != value:
                return f"{name}={found!r}, expected {value!r}"
        return None

    @property
    def end(self) -> int:
        """The number after the last sample of the closed shards, in the steps of this rank."""
        return self.shards[-1].last + self.world_size if self.shards else self.rank


class _Version(Record):
    """What is read first, of any version."""

    format: int


_FILE: Json[StreamFacts] = Json(StreamFacts, most_bytes=_MOST_BYTES, what=MANIFEST)
_VERSION: Json[_Version] = Json(_Version, most_bytes=_MOST_BYTES, what=MANIFEST)


def write_manifest(folder: Path, facts: StreamFacts) -> None:
    """Replace the manifest of a folder, durably.

    Raises:
        OSError: It cannot be written; the old one is untouched.
    """
    write_file(folder / MANIFEST, _FILE.encode(facts))


def read_manifest(folder: Folder) -> StreamFacts:
    """Read the manifest of a folder.

    Raises:
        ConfigError: There is none, or it is of another version.
        DamagedError: It is damaged, or there are shards and no manifest.
        OSError: It cannot be read.
    """
    path = folder.path(MANIFEST)
    try:
        data = folder.read(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        if any(name.startswith("shard-") for name in folder.sizes()):
            raise DamagedError(
                f"{folder} has shards of a recording, but its {MANIFEST} is missing; restore that file"
            ) from None
        raise ConfigError(f"{folder} is not a recording: it has no {MANIFEST}; give another folder") from None
    try:
        version = _VERSION.decode(data).format
        if version != _FORMAT:
            raise ConfigError(
                f"{path} has format {version}, expected {_FORMAT}: another version of softs-fast has written it; read it with "
                "that version"
            )
        facts = _FILE.decode(data)
    except WireError as error:
        raise DamagedError(f"{path} is damaged: {error}; restore a copy") from None
    _check_shards(path, facts)
    return facts


def _check_shards(path: str, facts: StreamFacts) -> None:
    """Check that the shards are in their order, and that their numbers rise, within and between them."""
    step, before = facts.world_size, -1
    for i, shard in enumerate(facts.shards):
        if shard.file != shard_name(i):
            raise DamagedError(f"{path} is damaged: shard {i} is {shard.file!r}, expected {shard_name(i)!r}")
        if (
            shard.first <= before
            or not shard.first % step == shard.last % step == facts.rank
            or not shard.n_samples <= (shard.last - shard.first) // step + 1
            or shard.n_samples > shard.n_bytes // _LEAST_SAMPLE_BYTES
        ):
            after = f" after number {before}" if i else ""
            raise DamagedError(
                f"{path} is damaged: shard {i} of rank {facts.rank} of {step} cannot have {shard.n_samples:,} samples with the "
                f"numbers {shard.first} to {shard.last} in {shard.n_bytes:,} bytes{after}; restore a copy"
            )
        before = shard.last


def shard_name(index: int) -> str:
    """Return the file name of a closed shard."""
    return f"shard-{index:06}.safetensors"


def rank_folder(rank: int, world_size: int) -> str:
    """Return the name of the folder of one of several ranks."""
    return f"rank-{rank:05}-of-{world_size:05}"


def rank_folders(names: Iterable[str]) -> dict[int, dict[int, str]]:
    """Return the recordings that a folder with such names has: for each number of ranks the folder of each rank.

    That of one rank is the folder itself, ``""``.
    """
    found: dict[int, dict[int, str]] = {}
    for name in names:
        if name == MANIFEST:
            found[1] = {0: ""}
        elif match := re.fullmatch(r"rank-(\d+)-of-(\d+)", name):
            found.setdefault(int(match[2]), {})[int(match[1])] = name
    return found
