"""The picture of a flow."""

from __future__ import annotations

import importlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import softs_fast.dataflow as df

REPOSITORY = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_the_page_is_that_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw it anew: `make_flow(0, 1).draw("docs/dataflow_graph.svg")`."""
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    flow = importlib.import_module("ppo_tiny").make_flow(0, 1)
    assert flow.draw() == (REPOSITORY / "docs" / "dataflow_graph.svg").read_text()


def test_functions_columns_and_weights_are_drawn(tmp_path: Path) -> None:
    class Model(df.Role):
        def make(self, rows: df.Rows) -> dict[str, list[str]]:
            return {"b": ["" for _ in rows["a"]]}

        def train(self, rows: df.Rows) -> dict[str, float]:
            return {}

    model = df.place(Model, name="model")
    maker = df.place(Model, pool=[1, 2], follows=model, name="maker")
    calls = [
        df.call(maker.make, "a -> b", rows=2),
        df.call(model.train, "a, b", rows=8, after=[df.publish(maker)]),
    ]
    flow = df.Flow(calls, source=({"a": i} for i in range(8)), max_age=8)
    picture = ElementTree.fromstring(flow.draw(tmp_path / "flow.svg"))
    assert (tmp_path / "flow.svg").read_text() == flow.draw()
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert texts[:2] == ["source (train)", "→ a"]
    assert texts[2:6] == ["maker.make", "maker: pool on 1, 2", "2 rows", "a → b"]
    arrows = [path for path in picture.iter(f"{SVG}path") if path.get("marker-end")]
    titles = [arrow.findtext(f"{SVG}title") for arrow in arrows]
    assert titles == ["a", "a", "b", "weights"]
    assert arrows[-1].get("class") == "weights"
