"""A trainer in the manner of timm's train.py: its loaders, optimizer, EMA, schedule, validation, checkpoints.

Usage: timm_train.py ACCUMULATE [FOLDER]

FOLDER: where timm and torchvision are, if they are not beside torch.
"""

import logging
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from PIL import Image

sys.path += sys.argv[2:]
# torchvision's packages are built for torch with CUDA. Beside a CPU build of torch their operators are missing,
# and the import stops at these two. timm does not use them.
try:
    import torchvision  # noqa: F401
except RuntimeError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.data import create_dataset, create_loader, resolve_data_config
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, accuracy, random_seed

EPOCHS, BATCH, CLASSES, PER_CLASS, SIZE = 2, 8, 4, 24, 64


def write_images(root):
    rng = numpy.random.default_rng(0)
    for split, number in (("train", PER_CLASS), ("validation", 8)):
        for label in range(CLASSES):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for image in range(number):
                pixels = rng.integers(0, 64, (SIZE, SIZE, 3), dtype=numpy.uint8)
                pixels[..., label % 3] += 128
                Image.fromarray(pixels).save(folder / f"{image}.png")


def loader_of(root, split, config, **options):
    dataset = create_dataset("", root=str(root), split=split, is_training=split == "train")
    return create_loader(
        dataset,
        input_size=(3, SIZE, SIZE),
        batch_size=BATCH,
        is_training=split == "train",
        mean=config["mean"],
        std=config["std"],
        num_workers=2,
        persistent_workers=False,
        device=torch.device("cpu"),
        **options,
    )


def train_epoch(model, loader, criterion, optimizer, ema, schedule, epoch, accumulate):
    model.train()
    losses, updates = AverageMeter(), epoch * -(-len(loader) // accumulate)
    optimizer.zero_grad()
    for number, (images, targets) in enumerate(loader):
        loss = criterion(model(images), targets)
        (loss / accumulate).backward()
        losses.update(loss.item(), len(images))
        if (number + 1) % accumulate and number + 1 < len(loader):
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        ema.update(model, step=updates)
        schedule.step_update(updates, metric=losses.avg)
    return losses.avg


@torch.no_grad()
def validate(model, loader):
    model.eval()
    top1 = AverageMeter()
    for images, targets in loader:
        top1.update(accuracy(model(images), targets)[0].item(), len(images))
    return top1.avg


def main():
    accumulate = int(sys.argv[1])
    logging.disable()
    torch.set_num_threads(1)
    random_seed(42)
    model = create_model("test_resnet", num_classes=CLASSES)
    config = resolve_data_config({}, model=model)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    ema = ModelEmaV3(model, decay=0.99)
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder, "data"), Path(folder, "out")
        write_images(data)
        out.mkdir()
        train, test = (loader_of(data, split, config) for split in ("train", "validation"))
        schedule, epochs = create_scheduler_v2(
            optimizer, sched="cosine", num_epochs=EPOCHS, updates_per_epoch=-(-len(train) // accumulate)
        )
        saver = CheckpointSaver(model, optimizer, model_ema=ema, checkpoint_dir=str(out), max_history=2)
        criterion = LabelSmoothingCrossEntropy(0.1)
        for epoch in range(epochs):
            loss = train_epoch(model, train, criterion, optimizer, ema, schedule, epoch, accumulate)
            top1 = validate(ema.module, test)
            saver.save_checkpoint(epoch, metric=top1)
            schedule.step(epoch + 1, top1)
            print(f"epoch {epoch} loss {loss:.7f} top1 {top1:.2f} kept {len(list(out.iterdir()))}", flush=True)


if __name__ == "__main__":
    main()
