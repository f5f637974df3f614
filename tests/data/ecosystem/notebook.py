"""The cells of the notebook that `nbconvert --execute` runs, divided by `# %%`."""

# %%
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
# %%
for step in range(40):
    x = torch.randn(16, 32)
    loss = (model(x).squeeze(-1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.9f}")
