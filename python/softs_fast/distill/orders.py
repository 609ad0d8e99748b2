"""A student's client of the market, which diagnoses missing samples of a generation."""

from __future__ import annotations

from ..errors import NoModel, SampleTimeout
from ..market import Client
from .model import parse_product

__all__ = ["StudentOrders"]


class StudentOrders(Client):
    """A client that orders samples of generations, each by `product_of`."""

    def diagnose(self, product_id: str, waited_s: float) -> SampleTimeout:
        """Return the cause why no sample of `product_id` arrived for `waited_s` seconds, as an exception to raise."""
        wanted = parse_product(product_id)
        if wanted is not None and wanted.number == 0:
            return NoModel(
                f"no sample within {waited_s:.1f} s: there is no model yet; the leader (rank 0) sets it with "
                "set_model(), other ranks receive it after start_sub_listener()"
            )
        return super().diagnose(product_id, waited_s)
