"""perfscope's callbacks in Lightning and in Hugging Face's Trainer.

Usage: callbacks.py lightning|transformers
"""

import sys
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

LABELS = {"dataset": "random", "password": "not to be stored"}


def with_lightning():
    import lightning

    from perfscope.integrations.lightning import PerfscopeCallback

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(8, 1)

        def training_step(self, batch, index):
            loss = self.line(batch[0]).square().mean()
            print(f"loss {loss.item():.9f}")
            return loss

        def validation_step(self, batch, index):
            self.line(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with tempfile.TemporaryDirectory() as out:
        callback = PerfscopeCallback(LABELS, samples=lambda batch: 5 * len(batch[0]))
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=2, default_root_dir=out, callbacks=[callback], **quiet
        )
        trainer.fit(Line(), batches, batches)


def with_transformers():
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from perfscope.integrations.huggingface import PerfscopeCallback

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 48
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)),
            args=TrainingArguments(
                output_dir=out,
                num_train_epochs=2,
                per_device_train_batch_size=8,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=rows,
            callbacks=[PerfscopeCallback(LABELS, samples=lambda args, state: 5 * args.train_batch_size)],
        )
        print(f"loss {trainer.train().training_loss:.9f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    {"lightning": with_lightning, "transformers": with_transformers}[sys.argv[1]]()
