"""Optuna: each trial trains a model of its own size; one of them is pruned."""

import optuna
import torch

TRIALS, STEPS, BATCH = 4, 25, 16


def objective(trial):
    width = trial.suggest_int("width", 16, 64)
    rate = trial.suggest_float("rate", 1e-3, 1e-1, log=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(STEPS):
        x = torch.randn(BATCH, 32)
        loss = (model(x).squeeze(-1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss.item(), step)
        if trial.number == 2 and step == 14:
            raise optuna.TrialPruned
    print(f"trial {trial.number} loss {loss.item():.9f}", flush=True)
    return loss.item()


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=TRIALS)
    print(f"best {study.best_value:.9f}", flush=True)
