"""Lightning's `ModelParallelStrategy` with FSDP2 on CPUs (its `FSDPStrategy` takes GPUs only).

Usage: lightning_fsdp2.py
"""

import tempfile

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 2, 8


class Sharded(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for layer in (self.layers[0], self.layers[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.layers, mesh=mesh)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        if self.global_rank == 0:
            print(f"batch {index} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(192, 64), torch.randint(0, 4, (192,)))
    with tempfile.TemporaryDirectory() as out:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
            max_epochs=EPOCHS,
            default_root_dir=out,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Sharded(), DataLoader(data, batch_size=BATCH))
        if trainer.global_rank == 0:
            print(f"updates {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
