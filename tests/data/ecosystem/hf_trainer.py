"""Hugging Face `Trainer`: a small language model, gradient accumulation, evaluation and checkpoints.

Usage: hf_trainer.py ACCUMULATE
"""

import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

UPDATES, BATCH, LENGTH = 24, 4, 32


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 128, (count, LENGTH), generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            print(state.global_step, {k: logs[k] for k in ("loss", "eval_loss", "grad_norm") if k in logs})


def main():
    accumulate = int(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=TrainingArguments(
                output_dir=out,
                max_steps=UPDATES,
                per_device_train_batch_size=BATCH,
                gradient_accumulation_steps=accumulate,
                eval_strategy="steps",
                eval_steps=8,
                save_steps=12,
                logging_steps=1,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=Tokens(400),
            eval_dataset=Tokens(48),
            callbacks=[Print()],
        )
        trainer.train()
        if trainer.is_world_process_zero():
            print("updates", trainer.state.global_step)


if __name__ == "__main__":
    main()
