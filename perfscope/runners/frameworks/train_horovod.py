"""The CNN in PyTorch with Horovod: `horovodrun -np P python train_horovod.py CONFIG.json`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import horovod
import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from perfscope.runners.frameworks.train_common import CellProcess, main
    from perfscope.runners.frameworks.train_torch import build, load
else:
    from train_common import CellProcess, main
    from train_torch import build, load


def train(cell: CellProcess) -> None:
    """The whole training."""
    torch.set_num_threads(cell.threads)
    model = build(cell.layers)
    load(model, cell.weights())
    if cell.device == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    model.to(cell.device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=cell.learning_rate, momentum=cell.momentum),
        named_parameters=model.named_parameters(),
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    cell.tell(version=horovod.__version__, torch=torch.__version__)
    cell.begin()
    for inputs, labels in cell.batches():
        optimizer.zero_grad()
        images = torch.from_numpy(inputs).to(cell.device)
        loss = cross_entropy(model(images), torch.from_numpy(labels).long().to(cell.device))
        loss.backward()
        optimizer.step()
        cell.step_done(loss.item())
    hvd.shutdown()


if __name__ == "__main__":
    hvd.init()  # first: it says which process this is
    os.environ.setdefault("RANK", str(hvd.rank()))
    os.environ.setdefault("WORLD_SIZE", str(hvd.size()))
    sys.exit(main(train))
