"""Values as bytes: the same ones again, and bytes that are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_values import same, tensors_of_every_dtype

from softs_fast.dataflow.store.packed import pack, unpack
from softs_fast.dataflow.store.values import Value
from softs_fast.errors import FlowError, WireError


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_values_are_the_same_again() -> None:
    values: list[Value] = [*tensors_of_every_dtype(), "text \udcff", b"", 1 << 70, -0.0, True, None]
    values.append([torch.zeros(3, dtype=torch.bfloat16), torch.empty(0), torch.ones(5, 2).t()])
    packed = pack("a", values)
    assert same(unpack(packed), values)  # type: ignore[arg-type]
    assert unpack(pack("a", [])) == []
    assert unpack(pack("a", [None, torch.ones(2), None]))[::2] == [None, None]
    assert not pack("a", [None] * 3).data.size


def test_the_same_values_are_the_same_bytes() -> None:
    # There is a gap between the tensors of a list.
    values: list[Value] = [[torch.ones(1), torch.ones(2)], [torch.zeros(3), torch.ones(1)]]
    assert np.array_equal(pack("a", values).data, pack("a", values).data)
    assert not pack("a", values).data[4:64].any()


def test_what_does_not_fit_is_refused() -> None:
    packed = pack("a", [torch.tensor([1, 2]), "text", True])
    for wrong, text in (
        (replace(packed, data=packed.data[:-1]), "packed values have 21 bytes, and 20 are there"),
        (replace(packed, form_of=packed.form_of + 1), "forms up to 3, and there are 3"),
        (replace(packed, form_of=packed.form_of[:2]), "3 packed values have 2 forms"),
        (replace(packed, form_of=packed.form_of[[2, 1, 0]]), "a packed tensor has 1 bytes; need 16"),
        (replace(packed, n_bytes=packed.n_bytes - 20), "or less than 0 bytes"),
        (replace(packed, forms=(*packed.forms[:2], ("none", ()))), "a packed none has 1 bytes; need 0"),
    ):
        with pytest.raises(WireError, match=text):
            unpack(wrong)
    with pytest.raises(FlowError, match="column 'a' has a dict"):
        pack("a", [{}])  # type: ignore[list-item]
