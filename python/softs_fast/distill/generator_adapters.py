"""Adapts functions of a model to functions of a product, which a supplier calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import GeneratorFailed
from ..market import takes_argument
from .model import NO_MODEL, Model, parse_product

__all__ = ["CurrentModel", "OrderRefused", "by_product"]

#: An order may arrive before the announcement of its model, for which the worker waits this long, seconds.
_ANNOUNCEMENT_TIMEOUT_S = 2.0
#: Number of products that are cached; others are parsed each time.
_MAX_KNOWN = 4096


class OrderRefused(GeneratorFailed):
    """The order is of a generation that is over: no worker would serve it."""


class Task(NamedTuple):
    """The model and the student's rank of a product."""

    model_id: str
    model_cfg: dict[str, Any] | None
    rank: int


class CurrentModel:
    """The model that a worker makes samples of; set in one thread, asked in another.

    Attributes:
        model: the newest one.
    """

    def __init__(self) -> None:
        self.model = NO_MODEL
        self._changed = threading.Condition()
        # Cached products of this model: one dict per model, so that no thread mixes two.
        self._known: tuple[Model, dict[str, Task]] = (NO_MODEL, {})
        # The newest generation for which a wait timed out.
        self._timed_out = 0
        self._is_closed = False

    def set(self, model: Model) -> None:
        """Make samples of this model from now on."""
        with self._changed:
            self._known = (model, {})
            self.model = model
            self._timed_out = 0
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits for a model."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def task(self, product_id: str) -> Task:
        """Return the model and rank for an order, waiting a moment for a model that was not announced yet.

        Raises:
            OrderRefused: the generation is over.
            GeneratorFailed: the generation was not announced to this worker, or the product names none.
        """
        return self._known[1].get(product_id) or self._look_up(product_id)

    def _look_up(self, product_id: str) -> Task:
        wanted = parse_product(product_id)
        if wanted is None:
            raise GeneratorFailed(f"product {product_id!r} names no generation and rank")
        with self._changed:
            if wanted.number != self._timed_out:
                self._changed.wait_for(
                    lambda: self.model.generation >= wanted.number or self._is_closed, _ANNOUNCEMENT_TIMEOUT_S
                )
            model, known = self._known
            if model.generation < wanted.number:
                self._timed_out = wanted.number
        if model.generation < wanted.number:
            raise GeneratorFailed(
                f"generation {wanted.number} is not known to this worker: the newest one announced here is "
                f"{model.generation}; is it connected to the control_pub endpoint of the same broker?"
            )
        if model.generation > wanted.number:
            raise OrderRefused(
                f"generation {wanted.number} is over: the model is {model.model_id!r} now, generation "
                f"{model.generation}; a student that is not the leader follows with start_sub_listener()"
            )
        task = Task(model.model_id, model.model_cfg, wanted.rank)
        if len(known) < _MAX_KNOWN:
            known[product_id] = task
        return task


def by_product(current: CurrentModel, function: Callable[..., Any], n_before: int) -> Callable[..., Any]:
    """Return a function of a product that calls one of a model.

    Args:
        current: finds the model of a product.
        function: called with model_id, model_cfg, then what the supplier gives it after the product.
        n_before: number of those arguments without the optional ones: 0, or 1 for `n` and `out`. After them,
            `function` may take the sequence number, or numbers, and then the rank of the student.

    Returns:
        `function(product_id, *those[, sequence])`.
    """
    task_of = current.task
    wants_rank = takes_argument(function, n_before + 3, "rank")
    wants_sequence = wants_rank or takes_argument(function, n_before + 2, "sequence", "sequences")

    if n_before == 0 and not wants_sequence:

        def plain(product_id: str) -> Any:
            model_id, model_cfg, _ = task_of(product_id)
            return function(model_id, model_cfg)

        return plain
    if n_before == 0:

        def numbered(product_id: str, sequence: int) -> Any:
            model_id, model_cfg, rank = task_of(product_id)
            return function(model_id, model_cfg, sequence, *((rank,) if wants_rank else ()))

        return numbered
    if not wants_sequence:

        def plain_with(product_id: str, given: Any) -> Any:
            model_id, model_cfg, _ = task_of(product_id)
            return function(model_id, model_cfg, given)

        return plain_with

    def numbered_with(product_id: str, given: Any, sequence: Any) -> Any:
        model_id, model_cfg, rank = task_of(product_id)
        return function(model_id, model_cfg, given, sequence, *((rank,) if wants_rank else ()))

    return numbered_with
