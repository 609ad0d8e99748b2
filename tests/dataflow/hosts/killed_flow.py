"""A flow with a journal of which each worker may die and the bits stay: what is generated follows from row and weights."""

from __future__ import annotations

from typing import Any

import journal_flow
import torch
from journal_flow import ROWS, factor, numbers, shrink

import softs_fast.dataflow as df


class Model(journal_flow.Model):
    """The generator is started again by itself, with generators as after `setup`; so it draws by the row alone."""

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.net.eval()
        found = self.net(rows["x"])
        self.net.train()
        noise = [torch.rand(2, generator=torch.Generator().manual_seed(row_id)) for row_id in rows.ids]
        return {"y": found + torch.stack(noise)}


def make_flow(folder: str) -> df.Flow:
    """Return the flow: worker 0 trains, weights are mixed into a role of worker 1, and worker 2 has no training state.

    Args:
        folder: Folder of the journal.
    """
    actor = df.place(Model, name="actor")
    average = df.place(Model, on=[1], name="average")
    gen = df.place(Model, on=[2], follows=actor, name="gen")
    after = [
        df.param_realloc(actor, average, eta=0.25),
        df.hook(shrink),
        df.publish(gen),
        df.hook(shrink, on=[average], every=3),
    ]
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(factor, "y -> factor", rows=ROWS),
        df.call(actor.train, "x, y, factor", rows=ROWS, after=after),
    ]
    journal = df.Journal(folder, 2, 9)
    return df.Flow(calls, source=numbers(), group=2, digests=True, journal=journal)
