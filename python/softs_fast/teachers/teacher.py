"""What all teachers have in common: the layout of their samples, and the worker or supplier that makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..configs import BatchConfig
from ..distill import Worker
from ..errors import ConfigError
from ..market import Supplier
from .order import Order
from .outputs import Wanted
from .sample_maker import SampleMaker

__all__ = ["Teacher"]


class Teacher(ABC):
    """A frozen model that makes samples; see `CausalLMTeacher`, `EncoderTeacher` and `TorchTeacher`.

    It is small to pickle: weights are loaded by `worker` and `supplier`, in the process that calls them.

    Attributes:
        batch_config: layout of a sample, for students.
    """

    batch_config: BatchConfig
    _order: Order
    _wanted: tuple[Wanted, ...]

    def worker(self, **arguments: Any) -> Worker:
        """Load the weights and return a worker that was not started; `Fleet(teacher.worker)` calls it in each process.

        The student's `model_cfg` may have `layer`, for outputs of the layer that it names, `first`, the sample with
        which the stream of the generation begins, and `texts`, the name of the texts where there are several.

        Args:
            **arguments: Arguments of `Worker`, for example `max_batch` and endpoints.

        Raises:
            ConfigError: weights, tokens or a device are missing.
        """
        function = self._load().for_model
        return Worker(batch_generator_fn=function, batch_config=self.batch_config, **self._limited(arguments))

    def supplier(self, product_id: str, **arguments: Any) -> Supplier:
        """Load the weights and return a supplier that was not started; `functools.partial` fits it to `Fleet`.

        Args:
            product_id: Product that the supplier makes, or a pattern of products, which then have the same samples.
            **arguments: Arguments of `Supplier`.

        Raises:
            ConfigError: as for `worker`; or an output is of the layer that a model_cfg names, which suppliers lack.
        """
        of_layer = [one.name for one in self._wanted if one.source.of_layer]
        if of_layer:
            raise ConfigError(
                f"outputs {of_layer} are of the layer that model_cfg names, and a supplier has no model_cfg; use worker"
            )
        return Supplier(
            batch_generator_fn=self._load().for_product,
            product_ids=[product_id],
            batch_config=self.batch_config,
            **self._limited(arguments),
        )

    @abstractmethod
    def _load(self) -> SampleMaker:
        """Load the weights and open the texts or data."""

    def _limited(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with which no call crosses the end of a stream that ends: it would fail as a whole."""
        return {**arguments} if self._order.repeat else {**arguments, "max_batch": 1}
