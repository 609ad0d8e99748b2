"""The function that a worker or a supplier calls: it makes the samples with some sequence numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConfigError
from .arguments import unknown
from .forward import Forward, Made
from .host_batch import HostBatch
from .order import Order
from .tokens import Examples

__all__ = ["Choice", "SampleMaker"]


@dataclass(frozen=True)
class Choice:
    """What a generation is of, as the student's model_cfg says.

    Attributes:
        layer: Layer that model_cfg names, for tensors of that layer; None: it names none.
        first: Number of the sample with which the stream begins.
        texts: Name of the texts; "" where there is one set of them only.
    """

    layer: int | None = None
    first: int = 0
    texts: str = ""

    @classmethod
    def of(cls, model_cfg: Mapping[str, Any] | None, n_layers: int | None, names: Sequence[str]) -> Choice:
        """Return what a model_cfg chooses; keys with other names are the user's.

        Args:
            model_cfg: `layer`, needed if there are tensors of it; `first`, default 0; `texts`, default the first ones.
            n_layers: Number of layers of the model, where a layer is needed; otherwise None.
            names: Names of the texts.

        Raises:
            ConfigError: a value that does not exist.
        """
        cfg = model_cfg or {}
        layer, first, texts = cfg.get("layer"), cfg.get("first", 0), cfg.get("texts", names[0])
        if n_layers is not None and not _is_number(layer, n_layers - 1):
            raise ConfigError(
                f'outputs of the layer need model_cfg={{"layer": 0 to {n_layers - 1}}}, got {layer!r}'
            )
        if not _is_number(first):
            raise ConfigError(f'model_cfg["first"] must be a whole number from 0 on, got {first!r}')
        if texts not in names:
            raise unknown('model_cfg["texts"]', str(texts), names)
        return cls(layer if n_layers is not None else None, first, texts)


class SampleMaker:
    """Makes samples by their sequence numbers.

    Args:
        forward: Function that makes tensors of examples.
        examples: Examples that the model is given, by name; one of the name "" if there is no choice.
        order: Order that maps sequence numbers to examples.
        max_rows: Examples that go through the model at once.
        n_layers: Number of layers of the model, if a layer must be chosen; otherwise None.
        device: Device of the model.
    """

    def __init__(
        self,
        forward: Forward,
        examples: Mapping[str, Examples],
        order: Order,
        *,
        max_rows: int,
        n_layers: int | None,
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._examples = dict(examples)
        self._order = order
        self._max_rows = max_rows
        self._n_layers = n_layers
        self._device = device

    def for_model(
        self, model_id: str, model_cfg: dict[str, Any] | None, n: int, sequences: tuple[int, ...], rank: int
    ) -> dict[str, Made]:
        """Make n samples for a `Worker`; see `Choice` for model_cfg.

        Returns:
            {name: dtype [n, *shape]} in host memory; `TopKLogits` of such tensors where the codec is `TopK`.

        Raises:
            ConfigError: model_cfg chooses what does not exist.
            GeneratorFailed: a text has no tokens, or all were used and are not repeated.
        """
        return self._samples(Choice.of(model_cfg, self._n_layers, [*self._examples]), sequences, rank)

    def for_product(self, product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Made]:
        """Make n samples for a `Supplier`; see `for_model`. All products have the same samples."""
        return self._samples(Choice(texts=next(iter(self._examples))), sequences, 0)

    def _samples(self, choice: Choice, sequences: Sequence[int], rank: int) -> dict[str, Made]:
        examples = self._examples[choice.texts]
        n_examples = len(examples)
        indices = [self._order.index(choice.first + number, rank, n_examples) for number in sequences]
        batch = HostBatch(len(indices), self._device)
        for start in range(0, len(indices), self._max_rows):
            fields = examples.batch(indices[start : start + self._max_rows])
            batch.put(start, self._forward(fields, choice.layer))
        return batch.finish()


def _is_number(value: object, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
