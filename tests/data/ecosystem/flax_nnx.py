"""Flax NNX: a model, an optax optimizer, a jitted training step and an evaluation."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

STEPS, BATCH = 60, 16


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.head = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.hidden(x))))


def loss_of(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def test_step(model, x, y):
    return (model(x).argmax(-1) == y).mean()


def main():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    key = jax.random.key(0)
    for step in range(STEPS):
        key, one, two = jax.random.split(key, 3)
        x, y = jax.random.normal(one, (BATCH, 64)), jax.random.randint(two, (BATCH,), 0, 10)
        model.train()
        loss = train_step(model, optimizer, x, y)
        print(f"step {step} loss {float(loss):.7f}", flush=True)
        if step % 20 == 19:
            model.eval()
            print(f"accuracy {float(jnp.mean(test_step(model, x, y))):.5f}", flush=True)


if __name__ == "__main__":
    main()
