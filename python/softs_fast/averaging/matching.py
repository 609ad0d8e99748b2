"""Which tensors of a model all ranks average: looked up at each use, and compared among the ranks before one changes.

A model changes while it trains: `bfloat16()` and `load_state_dict(assign=True)` replace its tensors, layers are added,
frozen and unfrozen. So nothing is remembered but names, and all ranks decide alike by what each of them has now.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.utils.parametrize import ParametrizationList

from softs_fast.averaging.decide import check_known
from softs_fast.averaging.reduction import among_survivors
from softs_fast.collectives import DTYPE_CODES, Strategy, agreement, describe
from softs_fast.errors import ConfigError
from softs_fast.tensors import local_tensor, mark_written, shard_of

logger = logging.getLogger(__name__)

BufferRule = Literal["average", "own"]

# Complex tensors are averaged as pairs of floats.
_DTYPES = (*DTYPE_CODES, torch.complex32, torch.complex64, torch.complex128)
# Buffers next to a parameter "weight_orig", by which `spectral_norm` and `prune` make the weight of a layer.
_REPARAMETRIZED = ("_u", "_v", "_mask")

# What a rank says of its tensors: descriptions by name under "trained" and "frozen" for parameters, and "buffers"; errors
# by name under "refused"; names of buffers that are copied.
Report = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Found:
    """The tensors of a model of this rank, at this moment.

    Attributes:
        local: Memory of each tensor that can be averaged, by name; complex ones as pairs of floats.
        whole: The tensors themselves, by name.
        trained: Names of parameters that are trained now, or are to be averaged once more.
        buffers: Names of persistent buffers.
        copied: Names of buffers that have no mean: those by which a layer makes its weight.
        refused: What a tensor is that cannot be averaged, by name.
    """

    local: Mapping[str, torch.Tensor]
    whole: Mapping[str, torch.Tensor]
    trained: Collection[str]
    buffers: Collection[str]
    copied: Collection[str]
    refused: Mapping[str, str]

    @classmethod
    def of(cls, model: torch.nn.Module, rule: BufferRule, once_more: Collection[str] = ()) -> Found:
        """Look up the tensors of a model; tied ones once.

        Args:
            model: Model of this rank.
            rule: Whether buffers are averaged.
            once_more: Names of parameters that count as trained, whether they are or not.

        Raises:
            ConfigError: The rule is unknown.
        """
        check_known("buffers", rule, BufferRule)
        parameters = dict(model.named_parameters())
        found = dict(persistent_buffers(model)) if rule == "average" else {}
        whole: dict[str, torch.Tensor] = parameters | {name: buffer for name, (buffer, _) in found.items()}
        trained = {name for name, weight in parameters.items() if weight.requires_grad or name in once_more}
        local: dict[str, torch.Tensor] = {}
        refused: dict[str, str] = {}
        places: dict[object, str] = {}
        for name, tensor in list(whole.items()):
            try:
                kind = "parameter" if name in parameters else "buffer"
                own = local_tensor(name, tensor, kind=kind, dtypes=_DTYPES).detach()
            except ConfigError as error:
                refused[name] = str(error)
                continue
            place = (own.device, own.data_ptr(), own.dtype, own.shape, own.stride()) if own.numel() else name
            first = places.setdefault(place, name)
            if first == name:
                local[name] = torch.view_as_real(own) if own.is_complex() else own
            else:
                # Tied by their memory: parameters that are several objects.
                del whole[name]
                if name in trained:
                    trained.remove(name)
                    trained.add(first)
        return cls(
            local,
            whole,
            trained,
            found.keys() & whole.keys(),
            {name for name, (_, is_copied) in found.items() if is_copied and name in whole},
            refused,
        )

    def check(self) -> None:
        """Raise ConfigError if a trained parameter cannot be averaged."""
        for name in sorted(self.refused.keys() & set(self.trained)):
            raise ConfigError(self.refused[name])

    def report(self) -> Report:
        """Return what the other ranks must know."""
        said: dict[str, dict[str, str]] = {"trained": {}, "frozen": {}, "buffers": {}}
        for name in self.whole:
            kind = "buffers" if name in self.buffers else "trained" if name in self.trained else "frozen"
            said[kind][name] = self._described(name)
        return {**said, "refused": self.refused, "copied": dict.fromkeys(sorted(self.copied), "")}

    def still_trained(self, names: Iterable[str]) -> set[str]:
        """Return those of some names that are parameters which are trained now."""
        return {name for name in names if self.whole[name].requires_grad}

    def pick(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the memory of some tensors."""
        return {name: self.local[name] for name in names}

    def mark_written(self, names: Collection[str]) -> None:
        """Have autograd refuse what it saved of these tensors before they changed."""
        mark_written([self.whole[name] for name in names])

    def _described(self, name: str) -> str:
        if name in self.refused:
            return "no dense tensor with memory"
        return describe(self.local[name], shard_of(self.whole[name]))


@dataclass(frozen=True)
class Agreed:
    """What all ranks average now, by what they have reported; the same on all of them.

    Attributes:
        weights: Names of parameters that a rank trains.
        frozen: Names of other parameters that all ranks have alike.
        buffers: Names of buffers of which all ranks take the mean, or the largest of integers.
        copied: Names of buffers that all ranks take from the first one.
        left_out: Why buffers are not averaged, by name.
    """

    weights: Sequence[str]
    frozen: Sequence[str]
    buffers: Sequence[str]
    copied: Sequence[str]
    left_out: Mapping[str, str]


def agree(strategy: Strategy, found: Found) -> Agreed:
    """Compare the tensors of all ranks; a call of all of them.

    Raises:
        ConfigError: Ranks differ in a parameter that one of them trains, or it cannot be averaged; on all ranks.
        PeerLost: A rank was lost, and the strategy cannot rebuild its group.
    """
    own = json.dumps(found.report()).encode()
    texts = [own]
    if strategy.size > 1:
        # Strategies of devices take no tensors of the host.
        device = next((tensor.device for tensor in found.local.values()), torch.device("cpu"))
        texts = among_survivors(strategy, lambda: _gathered(strategy, own, device))
    return decide([json.loads(text) for text in texts])


def decide(reports: Sequence[Report]) -> Agreed:
    """Return what ranks average that have such tensors.

    Raises:
        ConfigError: They differ in a parameter that one of them trains, or it cannot be averaged.
    """
    weights = sorted({name for report in reports for name in report["trained"]})
    for name in weights:
        values = [report["trained"].get(name) or report["frozen"].get(name, "absent") for report in reports]
        problem = _problem("parameter", name, reports, values)
        if problem:
            remedy = "; give an averager the ranks that have the same shard" if ", shard " in problem else ""
            raise ConfigError(f"{problem}{remedy}")
    alike: dict[str, list[str]] = {"frozen": [], "buffers": []}
    left_out = {}
    for kind, names in alike.items():
        for name in sorted({name for report in reports for name in report[kind]}.difference(weights)):
            problem = _problem(
                "buffer", name, reports, [report[kind].get(name, "absent") for report in reports]
            )
            if not problem:
                names.append(name)
            elif kind == "buffers":
                left_out[name] = problem
    copied = {name for report in reports for name in report["copied"]}
    return Agreed(
        weights,
        alike["frozen"],
        [name for name in alike["buffers"] if name not in copied],
        [name for name in alike["buffers"] if name in copied],
        left_out,
    )


def warn_of(left_out: Mapping[str, str], warned: set[str]) -> None:
    """Warn once of each tensor that is left out.

    Args:
        left_out: Why, by name.
        warned: Names of which was warned; changed.
    """
    for name in sorted(left_out.keys() - warned):
        logger.warning("not averaged: %s", left_out[name])
        warned.add(name)


def _problem(kind: str, name: str, reports: Sequence[Report], values: Sequence[str]) -> str:
    """Return why ranks cannot average a tensor; "" if they can.

    Args:
        kind: Noun in front of the name.
        name: Name of the tensor.
        reports: What each rank has reported.
        values: What the tensor is on each rank.
    """
    refusing = [rank for rank, report in enumerate(reports) if name in report["refused"]]
    if refusing:
        text = reports[refusing[0]]["refused"][name]
        return text if len(refusing) == len(reports) else f"{text}, on rank {', '.join(map(str, refusing))}"
    return f'{kind} "{name}": {agreement.by_value(values)}' if len(set(values)) > 1 else ""


def _gathered(strategy: Strategy, text: bytes, device: torch.device) -> list[bytes]:
    """Return the texts of all ranks, by rank."""
    lengths = torch.zeros(strategy.size, dtype=torch.int64, device=device)
    strategy.all_gather(lengths, torch.tensor([len(text)], device=device))
    row = torch.zeros(int(lengths.max()), dtype=torch.uint8, device="cpu")
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    rows = torch.zeros(strategy.size * len(row), dtype=torch.uint8, device=device)
    strategy.all_gather(rows, row.to(device))
    return [
        bytes(said[:length].tolist())
        for said, length in zip(rows.cpu().view(strategy.size, -1), lengths.tolist(), strict=True)
    ]


def persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, tuple[torch.Tensor, bool]]]:
    """Yield buffers that a checkpoint would have, tied ones once, and whether a layer makes its weight by them."""
    makers = {
        id(part)
        for module in model.modules()
        if isinstance(module, ParametrizationList)
        for part in module.modules()
    }
    kept = model.state_dict().keys()
    known: set[int] = set()
    for prefix, module in model.named_modules():
        weights = dict(module.named_parameters(recurse=False))
        for name, buffer in module.named_buffers(recurse=False):
            full_name = f"{prefix}.{name}" if prefix else name
            if full_name not in kept or id(buffer) in known:
                continue
            known.add(id(buffer))
            is_copied = id(module) in makers or any(
                name.endswith(ending) and f"{name.removesuffix(ending)}_orig" in weights
                for ending in _REPARAMETRIZED
            )
            yield full_name, (buffer, is_copied)
