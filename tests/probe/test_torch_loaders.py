"""Workers of torch's data loaders: what is recorded of real ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfscope.analysis.loading.record import rank_loading
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.loading import InputCause
from tests.probe.conftest import Train

PROGRAM = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if get_worker_info().id == 1:
            time.sleep(0.008)
        return torch.full((4,), float(index))

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Samples(), 4, shuffle=True, num_workers=2, multiprocessing_context=START)
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        print(sorted(batch[:, 0].tolist()), loss.item())
"""


@pytest.mark.parametrize("start", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_each_worker_says_when_it_made_which_batch(train: Train, start: str) -> None:
    recorded = train(PROGRAM.replace("START", repr(start)))
    assert recorded.errors() == []
    (recorded.run / "run.json").write_text(json.dumps({"schema_version": 1, "perfscope_version": "0"}))
    reader = RunReader(recorded.run)
    loading = reader.loading(0)
    assert loading is not None and loading.num_bad == 0
    assert [loading.workers[pid].worker for pid in loading.iterators[0].workers] == [0, 1]
    assert loading.asks[:, 3].tolist() == list(range(16))
    for worker in loading.workers.values():
        assert worker.rows[:, 0].tolist() == list(range(worker.worker, 16, 2))
        ends = worker.rows[:, 1] + worker.rows[:, 3]
        assert (np.diff(worker.rows[:, 1]) > 0).all() and (worker.rows[1:, 1] >= ends[:-1]).all()
        taken = loading.asks[loading.asks[:, 4] == worker.worker]
        assert (taken[:, 1] + taken[:, 2] >= ends).all()  # no batch is taken before it is made
    result = rank_loading(0, loading, 16, None)
    assert result is not None and (result.cause, result.slow_worker) == (InputCause.SLOW_WORKER, 1)
