"""Trains a small CNN with MXNet (gluon) on images it makes itself.

python examples/train_mxnet.py                  # one process
python examples/train_mxnet.py --workers 2      # and a server and a scheduler, on this machine

On a cluster the launcher sets DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and
DMLC_NUM_SERVER, and starts this program once for each of them.
"""

import argparse
import os
import socket
import subprocess
import sys

NUM_CLASSES = 4
SIZE = 32


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1, help="worker processes to start on this machine")
    parser.add_argument("--steps", type=int, default=40, help="of each worker")
    parser.add_argument("--batch-size", type=int, default=16, help="per worker")
    parser.add_argument("--store", default="dist_sync", help="kind of distributed store")
    args = parser.parse_args()
    if args.workers > 1 and "DMLC_ROLE" not in os.environ:
        return start_locally(args.workers)
    train(args)
    return 0


def start_locally(workers: int) -> int:
    """One scheduler, one server and the workers, as processes of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
        "DMLC_INTERFACE": "lo",
    }
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **common, "DMLC_ROLE": role})
        for role in ["scheduler", "server"] + ["worker"] * workers
    ]
    codes = [process.wait() for process in reversed(started)]
    return max(codes)


def train(args: argparse.Namespace) -> None:
    import mxnet as mx  # servers and the scheduler do their work in here, and never come back

    store = mx.kv.create(args.store) if "DMLC_ROLE" in os.environ else None
    rank = store.rank if store is not None else 0
    mx.random.seed(0)  # every worker starts with the same weights
    model = small_cnn(mx)
    model.initialize(mx.init.Xavier())
    loader = mx.gluon.data.DataLoader(stripes(mx, args.steps * args.batch_size, rank), args.batch_size)
    trainer = mx.gluon.Trainer(
        model.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9}, kvstore=store or "device"
    )
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    # A store sums the gradients of all workers: divide by all their samples.
    workers = store.num_workers if store is not None else 1
    for step, (images, labels) in enumerate(loader):
        with mx.autograd.record():
            loss = criterion(model(images), labels)
        loss.backward()
        trainer.step(args.batch_size * workers)
        if step % 8 == 0:
            print(f"rank {rank} step {step:3d} loss {loss.mean().asscalar():.6f}", flush=True)
    print(f"rank {rank} final loss {loss.mean().asscalar():.6f}", flush=True)


def small_cnn(mx):
    nn = mx.gluon.nn
    model = nn.HybridSequential()
    for channels in (16, 32):
        model.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2))
    model.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(64, activation="relu"), nn.Dense(NUM_CLASSES))
    return model


def stripes(mx, length: int, rank: int):
    """Images of stripes, and the direction of the stripes."""
    import numpy as np

    random = np.random.RandomState(rank)
    y, x = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
    patterns = np.stack([np.sin(phase * 0.8) for phase in (x, y, x + y, x - y)])
    labels = random.randint(0, NUM_CLASSES, length)
    images = patterns[labels][:, None] + random.randn(length, 3, SIZE, SIZE)
    return mx.gluon.data.ArrayDataset(images.astype("float32"), labels.astype("float32"))


if __name__ == "__main__":
    sys.exit(main())
