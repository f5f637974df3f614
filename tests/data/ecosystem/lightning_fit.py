"""Lightning: `Trainer.fit` with validation and a checkpoint each epoch.

Usage: lightning_fit.py STRATEGY DEVICES ACCUMULATE
"""

import sys
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 3, 8


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
        self.head = torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.features(x))

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self(x), y)
        if self.global_rank == 0:
            print(f"batch {index} loss {loss.item():.9f}", flush=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self(x), y), sync_dist=True)

    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            print(f"validated {float(self.trainer.callback_metrics.get('val_loss', 0)):.9f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def data(count):
    return TensorDataset(torch.randn(count, 64), torch.randint(0, 4, (count,)))


def main():
    strategy, devices, accumulate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    train, val = data(96 * devices), data(32 * devices)
    with tempfile.TemporaryDirectory() as out:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=strategy,
            max_epochs=EPOCHS,
            accumulate_grad_batches=accumulate,
            default_root_dir=out,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(
            Classifier(), DataLoader(train, batch_size=BATCH, shuffle=True), DataLoader(val, batch_size=BATCH)
        )
        if trainer.global_rank == 0:
            print(f"updates {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
