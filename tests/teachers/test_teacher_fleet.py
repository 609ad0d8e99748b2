"""Teachers in worker processes: students get what their models compute, and learn that a pass is over."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import TEXTS, make_net

import softs_fast as sf
from softs_fast.codecs import TopK, topk_logits
from softs_fast.teachers import CausalLMTeacher, Output, TorchTeacher

pytestmark = pytest.mark.timeout(50)


@pytest.mark.full
def test_layers_of_a_fleet_of_teachers(llama: Path, tmp_path: Path) -> None:
    """One layout for all layers, and top-k logits beside; switched as the leader says."""
    import transformers

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    outputs = {"y": Output("layer.output"), "logits": TopK(4), "ids": None, "mask": None}
    teacher = CausalLMTeacher(llama, corpus, 8, outputs, packed=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    config = teacher.batch_config
    with sf.Fleet(teacher.worker) as fleet, fleet.student(8, config) as client:
        client.hello()
        client.set_model("layer_0", {"layer": 0})
        data = sf.DistillIterableDataset(
            0, client.generation_value, 32, config, fleet.endpoints.frontend, ordered=True
        )
        batches = iter(sf.DistillDataLoader(data, batch_size=8))
        for layer in (0, 1):
            if layer:
                client.set_model("layer_1", {"layer": 1})
            for number in range(2):
                batch: dict[str, Any] = next(batches)
                expected = teacher._load().for_model(
                    "m", {"layer": layer}, 8, tuple(range(8 * number, 8 * number + 8)), 0
                )
                assert torch.equal(batch["ids"], expected["ids"])
                with torch.inference_mode():
                    whole = model(
                        input_ids=batch["ids"],
                        attention_mask=batch["mask"].long(),
                        output_hidden_states=True,
                    )
                mask = batch["mask"]
                top = topk_logits(whole.logits, 4)
                torch.testing.assert_close(batch["logits"].values[mask], top.values[mask])
                torch.testing.assert_close(batch["logits"].lse[mask], top.lse[mask])
                y = batch["y"] if layer == 0 else model.model.norm(batch["y"])
                torch.testing.assert_close(y[mask], whole.hidden_states[layer + 1][mask])
        data.close()


def test_suppliers_of_a_module_end_with_their_data() -> None:
    data = torch.randn(10, 4)
    teacher = TorchTeacher(make_net, data, ["input", "output"], repeat=False)
    make_supplier = functools.partial(teacher.supplier, "net", max_batch=8)
    with sf.Fleet(make_supplier) as fleet:
        loader = fleet.loader(
            "net", teacher.batch_config, num_slots=16, batch_size=5, ordered=True, request_timeout=5.0
        )
        batches = iter(loader)
        got = [next(batches) for _ in range(2)]
        rows = torch.cat([batch["input"] for batch in got])
        assert sorted(rows.tolist()) == sorted(data.tolist())
        with torch.inference_mode():
            torch.testing.assert_close(torch.cat([batch["output"] for batch in got]), make_net().eval()(rows))
        with pytest.raises(sf.GeneratorFailed, match="used up: one pass has samples 0 to 9"):
            next(batches)
        loader.soft_dataset.close()
