"""Memory on CUDA devices that all ranks of a group have opened."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from softs_fast import _kernels
from softs_fast.collectives import agreement
from softs_fast.collectives.cuda.signals import N_EVENTS, Events, Signals, Words
from softs_fast.errors import ConfigError
from softs_fast.tensors import cuda

# Epochs of launches with waits begin shortly before they wrap around, so that every group passes that point.
FIRST_EPOCH = 0xFFFFFF00

_FLAG_BYTES = 4 * _kernels.CUDA_TOGETHER_FLAGS
_MISSING_BYTES = 8 * _kernels.CUDA_TOGETHER_BLOCKS
# A random number, by which another rank checks what it reads.
_PATTERN_BYTES = 8
_PAGE_BYTES = 4096
_HANDLE_BYTES = 64
_REMEDY = "use ShmStrategy, or TorchStrategy over NCCL"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """One rank's memory, as opened in this process.

    Attributes:
        address: address of its memory.
        staging_bytes: size of each of the areas in it.
    """

    address: int
    staging_bytes: int

    @property
    def flags(self) -> int:
        """Address of the flags that the blocks of other ranks set when they arrive."""
        return self.address

    @property
    def missing(self) -> int:
        """Address of the words in which the rank's own blocks record missing ranks."""
        return self.address + _FLAG_BYTES

    @property
    def pattern(self) -> int:
        """Address of the rank's random number."""
        return self.missing + _MISSING_BYTES

    def staged(self, half: int) -> int:
        """Return the address of the rank's staged tensor."""
        return self.address + _header_bytes() + half * self.staging_bytes

    def reduced(self, half: int) -> int:
        """Return the address of the rank's slice of the result."""
        return self.staged(half) + 2 * self.staging_bytes


class Arena:
    """This rank's memory, and that of all other ranks, opened.

    Other ranks read `staged` and `reduced` of this rank and write its flags; only this rank writes the rest.

    Attributes:
        own: memory of this rank.
        members: memory of all ranks, by rank.
        signals: announcements of all ranks.
        done: an event of this rank that is not shared: the end of its last step.
    """

    def __init__(self, device: int, staging_bytes: int, words: Words | None) -> None:
        """Raises CudaError: no such device, or no memory there."""
        self._device = device
        self._staging_bytes = staging_bytes
        self._memory = _kernels.CudaMemory(_header_bytes() + 4 * staging_bytes, device)
        self._mappings: list[_kernels.CudaMapping] = []
        self.own = Member(self._memory.address, staging_bytes)
        self.members: list[Member] = [self.own]
        self.signals: Signals = Events(device) if words is None else words
        self.done = _kernels.CudaEvent(device)
        self._stream = _kernels.CudaStream(device)
        self._pattern = secrets.token_bytes(_PATTERN_BYTES)
        self._set_flags()

    @classmethod
    def meet(
        cls,
        group: _kernels.Group,
        device: int,
        staging_bytes: int,
        settings: Mapping[str, object],
        words: Words | None,
    ) -> Arena:
        """Allocate this rank's memory, and open that of all other ranks; all or none. A collective call.

        Args:
            group: The ranks.
            device: Number of this rank's device.
            staging_bytes: Size of each of four areas.
            settings: Values that must be the same on all ranks, by name.
            words: Words for announcements; None on all ranks for events. They are closed with the arena, and by an
                error.

        Raises:
            ConfigError: settings differ, a rank has no device or no memory, or one cannot open another's; the text
                names them.
            PeerLost: a rank died during the call.
        """
        arena: Arena | None = None
        card: dict[str, object] = {"settings": {**settings, "staging_bytes": staging_bytes}, "problem": ""}
        try:
            arena = cls(device, staging_bytes, words)
            card |= arena._card()
        except _kernels.CudaError as error:
            card["problem"] = f"device {device}: {error}"
        try:
            arena = cls._open_all(group, arena, card, N_EVENTS if words is None else 0)
        except BaseException:
            if arena is not None:
                arena.close_others()
                arena.close()
            elif words is not None:
                words.close()
            raise
        return arena

    @classmethod
    def _open_all(
        cls, group: _kernels.Group, arena: Arena | None, card: Mapping[str, object], n_events: int
    ) -> Arena:
        said = group.exchange(json.dumps(card).encode())
        problem = str(card["problem"])
        try:
            cards = [_checked_card(text, rank, n_events) for rank, text in enumerate(said)]
            for key in cards[0]["settings"]:
                agreement.check_same(key, [card["settings"].get(key) for card in cards])
            if arena is not None and not any(card["problem"] for card in cards):
                arena._open(cards, group.rank)
        except ConfigError as error:
            problem = problem or str(error)
            if arena is not None:
                # Before another rank learns of it and frees memory that is open here.
                arena.close_others()
        problems = [text.decode(errors="replace") for text in group.exchange(problem.encode()[:1000])]
        if any(problems) or arena is None:
            texts = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(problems) if text)
            if arena is not None:
                arena.close_others()
            # No rank frees memory that another one still has open.
            group.exchange(b"")
            raise ConfigError(f"{group.size} ranks cannot share memory of CUDA devices: {texts}; {_REMEDY}")
        return arena

    def missing_ranks(self) -> list[int]:
        """Return the ranks that were missing in the last launch of this rank, which must have completed."""
        words = torch.zeros(_kernels.CUDA_TOGETHER_BLOCKS, dtype=torch.int64, device="cpu")
        self._copy(words.data_ptr(), self.own.missing, _MISSING_BYTES)
        return [rank for rank in range(len(self.members)) if any(word >> rank & 1 for word in words.tolist())]

    def close_others(self) -> None:
        """Close what other ranks share; no work in any stream of this rank may use it any more. Idempotent."""
        for mapping in self._mappings:
            mapping.close()
        self._mappings.clear()
        self.signals.close_others()
        self.members = [self.own]

    def close(self) -> None:
        """Free this rank's memory; no other rank may have it open any more. Idempotent."""
        self.signals.close()
        self.done.close()
        self._stream.close()
        self._memory.close()

    def release(self, free: bool) -> None:
        """Free the memory of this rank, or keep it until the process ends, because others may use it."""
        if free:
            self.close()
            return
        self.abandon()
        logger.warning(
            "%d bytes on CUDA device %d stay until this process ends: other ranks, or streams of this one, may still "
            "use them",
            4 * self._staging_bytes,
            self._device,
        )

    def abandon(self) -> None:
        """Keep all memory until the process ends, because a stream or another rank may still use it."""
        for mapping in self._mappings:
            mapping.abandon()
        self._memory.abandon()

    def _card(self) -> dict[str, object]:
        return {
            "device": self._device,
            "device_id": cuda.device_id(self._device),
            "memory": self._memory.handle.hex(),
            "pattern": self._pattern.hex(),
            "events": [handle.hex() for handle in self.signals.handles]
            if isinstance(self.signals, Events)
            else [],
        }

    def _open(self, cards: Sequence[Mapping[str, Any]], own_rank: int) -> None:
        """Raises ConfigError, with the rank and the device that cannot be reached."""
        here = {cuda.device_id(device): device for device in range(_kernels.cuda_devices())}
        members = []
        for rank, card in enumerate(cards):
            if rank == own_rank:
                members.append(self.own)
                continue
            target = f"that of rank {rank} on device {card['device']} ({card['device_id']})"
            peer = here.get(card["device_id"])
            try:
                if peer is not None and not _kernels.cuda_can_access(self._device, peer):
                    raise ConfigError(
                        f"device {self._device} has no access to the memory of others; needed is {target}"
                    )
                mapping = _kernels.CudaMapping(bytes.fromhex(card["memory"]), self._device)
                self._mappings.append(mapping)
                member = Member(mapping.address, self._staging_bytes)
                if cuda.read_by_kernel(member.pattern, _PATTERN_BYTES, self._device).hex() != card["pattern"]:
                    raise ConfigError(
                        f"device {self._device} reads other data than was written in {target}: peer access does not "
                        "work on this machine"
                    )
                if isinstance(self.signals, Events):
                    self.signals.open(rank, [bytes.fromhex(handle) for handle in card["events"]])
            except _kernels.CudaError as error:
                raise ConfigError(f"device {self._device} cannot open {target}: {error}") from error
            members.append(member)
        self.members = members

    def _set_flags(self) -> None:
        """Set all flags to the state before the first epoch, and write the pattern."""
        before = torch.full(
            (_kernels.CUDA_TOGETHER_FLAGS,), FIRST_EPOCH - (1 << 32), dtype=torch.int32, device="cpu"
        )
        self._copy(self.own.flags, before.data_ptr(), _FLAG_BYTES)
        pattern = torch.frombuffer(bytearray(self._pattern), dtype=torch.uint8)
        self._copy(self.own.pattern, pattern.data_ptr(), _PATTERN_BYTES)

    def _copy(self, to: int, source: int, n_bytes: int) -> None:
        """Copy in a stream of its own, independent of other work on this device, and wait for it."""
        _kernels.cuda_copy(to, source, n_bytes, self._stream.handle)
        self._stream.synchronize()


def _header_bytes() -> int:
    return -(-(_FLAG_BYTES + _MISSING_BYTES + _PATTERN_BYTES) // _PAGE_BYTES) * _PAGE_BYTES


def _checked_card(text: bytes, rank: int, n_events: int) -> dict[str, Any]:
    """Return the description that a rank has sent of its memory, or of its problem."""
    try:
        card = json.loads(text)
        fits = isinstance(card["settings"], dict) and isinstance(card["problem"], str)
        if fits and not card["problem"]:
            handles = [card["memory"], *card["events"]]
            fits = (
                isinstance(card["device"], int)
                and isinstance(card["device_id"], str)
                and card["device_id"].isalnum()
                and isinstance(card["pattern"], str)
                and len(handles) == 1 + n_events
                and all(len(bytes.fromhex(handle)) == _HANDLE_BYTES for handle in handles)
            )
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise ConfigError(
            f"rank {rank} sent a malformed description of its device; is it of the same version?"
        )
    return dict(card)
