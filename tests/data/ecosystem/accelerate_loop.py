"""A loop of its own on accelerate: accumulation, evaluation with gathered metrics, saved state.

Usage: accelerate_loop.py ACCUMULATE
"""

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 2, 8


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        self.head = torch.nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=int(sys.argv[1]))
    torch.set_num_threads(1)
    set_seed(0)
    x = torch.randn(192, 32)
    train = DataLoader(TensorDataset(x, x.sum(1)), batch_size=BATCH, shuffle=True)
    test = DataLoader(TensorDataset(x[:64], x[:64].sum(1)), batch_size=BATCH)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    with tempfile.TemporaryDirectory() as out:
        for epoch in range(EPOCHS):
            model.train()
            for inputs, targets in train:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                accelerator.print(f"epoch {epoch} loss {loss.item():.9f}", flush=True)
            model.eval()
            total = 0.0
            for inputs, targets in test:
                with torch.no_grad():
                    predicted, targets = accelerator.gather_for_metrics((model(inputs), targets))
                total += (predicted - targets).square().sum().item()
            accelerator.print(f"epoch {epoch} test {total:.6f}", flush=True)
            accelerator.save_state(out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
