"""A training that breaks its surroundings at a chosen moment, and goes on.

Every loss is printed bit for bit and added to a file of its own, `own-<rank>`; the exit code is 7. What happens is
decided by the arguments alone, so that a plain run and one under `perfscope run` do the same.
FAULT_DIR: a file system of its own whose folder `run` is (under perfscope) the run directory.
`--serve`: import the framework once and run every case that is asked for on stdin in a forked child.
"""

import argparse
import contextlib
import ctypes
import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import sys
import threading
import time

STEPS, IN_WINDOW, IN_STEP = 24, 3, 10  # perfscope traces steps 3 and 4
PAUSE_S = 0.02  # perfscope writes steps five times a second
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_kept = []


class Own:
    """The training's own file."""

    def __init__(self, rank):
        self.path = "own-%d" % rank
        self.file = open(self.path, "ab", buffering=0)

    def add(self, text):
        self.file.write(text.encode()[-8:])  # some 200 bytes at the end

    def reopen(self):
        self.file = open(self.path, "ab", buffering=0)  # its descriptor is the lowest that is free


def full_disk(own):
    with contextlib.suppress(OSError), open(os.environ["FAULT_DIR"] + "/filler", "wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


def removed(own):
    while os.path.isdir(os.environ["FAULT_DIR"] + "/run"):  # others may be writing into it
        shutil.rmtree(os.environ["FAULT_DIR"] + "/run", ignore_errors=True)


def replaced(own):
    run = os.environ["FAULT_DIR"] + "/run"
    os.rename(run, run + ".before")
    os.mkdir(run)
    with open(run + "/precious", "w") as file:
        file.write("not perfscope's")


def read_only(own):
    folder = os.environ["FAULT_DIR"].encode()
    mount = ctypes.CDLL(None, use_errno=True).mount
    if mount(None, folder, None, _MS_REMOUNT | _MS_RDONLY, None) == 0:
        return
    assert ctypes.get_errno() == errno.EBUSY  # files are open for writing: hide it below a read-only view of it
    assert mount(folder, folder, None, _MS_BIND, None) == 0
    assert mount(None, folder, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None) == 0


def setuid(own):
    os.setuid(65534)


def chroot(own):
    os.chroot("jail")


def emfile(own):
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with contextlib.suppress(OSError):
        while True:
            _kept.append(os.open("/dev/null", os.O_RDONLY))


def fsize(own):
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # more than what the training itself writes


def closed(own):
    own.file.close()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    own.reopen()


def closed_files(own):
    """As `closed`, for a training that needs its sockets."""
    own.file.close()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISREG(os.fstat(int(name)).st_mode):
                os.close(int(name))
    own.reopen()


OF_THE_DISK = (full_disk, removed, replaced, read_only)
FAULTS = {one.__name__: one for one in (*OF_THE_DISK, setuid, chroot, emfile, fsize, closed)}


def break_something(options, own, rank):
    fault = FAULTS[options.fault]
    if fault in OF_THE_DISK and rank != 0:
        return
    if fault is closed and options.framework == "ddp":
        fault = closed_files
    fault(own)


def stepper(framework):
    """A function that takes a step of training, calls what it is given in its middle, and returns the loss."""
    if framework == "python":
        import perfscope

        numbers = random.Random(0)

        def step(middle):
            perfscope.step(4)
            total = sum(numbers.random() for _ in range(100))
            middle()
            return total

        return step
    return _jax_stepper() if framework == "jax" else _torch_stepper(framework)


def _torch_stepper(framework):
    import torch

    with contextlib.suppress(ImportError):  # torch before 2.13 has none; later ones import it in the first step
        import torch.profiler._cupti_monitor  # noqa: F401 - behind a chroot it would warn, with the time in it
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    if framework == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(middle):
        loss = model(torch.randn(4, 8)).square().mean()
        middle()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _jax_stepper():
    import jax
    import jax.numpy as jnp

    import perfscope

    gradient = jax.jit(jax.value_and_grad(lambda w, x: jnp.mean(jnp.square(x @ w))))
    state = {"w": jnp.ones((8, 2)), "key": jax.random.PRNGKey(0)}

    def step(middle):
        perfscope.step(4)
        state["key"], key = jax.random.split(state["key"])
        middle()
        loss, change = gradient(state["w"], jax.random.normal(key, (4, 8)))
        state["w"] = state["w"] - 0.1 * change
        return float(loss)

    return step


def train(options, rank):
    own = Own(rank)
    step = stepper(options.framework)
    moments = {"start": -1, "window": IN_WINDOW, "step": IN_STEP, "exit": STEPS}
    when = moments[options.moment]
    if when == -1:
        break_something(options, own, rank)
    for number in range(STEPS):
        loss = step(lambda at=number: break_something(options, own, rank) if at == when else None)
        own.add(loss.hex())
        if rank == 0:
            print(number, loss.hex(), flush=True)
        time.sleep(PAUSE_S)
    if when == STEPS:
        break_something(options, own, rank)


def in_thread(options, rank):
    if not options.thread:
        return train(options, rank)
    if options.fault == "fsize":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the main thread alone may
    thread = threading.Thread(target=train, args=(options, rank))
    thread.start()
    thread.join()


def rank_of_two(options, rank):
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
    in_thread(options, rank)
    dist.destroy_process_group()


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=list(FAULTS))
    parser.add_argument("--moment", choices=["start", "step", "window", "exit"])
    parser.add_argument("--framework", choices=["python", "torch", "ddp", "jax"])
    parser.add_argument("--thread", action="store_true")
    options = parser.parse_args(arguments)
    _load(options.framework)
    if options.framework == "ddp":
        other = multiprocessing.get_context("fork").Process(target=rank_of_two, args=(options, 1))
        other.start()
        rank_of_two(options, 0)
        other.join()
        sys.exit(7 if other.exitcode == 0 else 8)
    in_thread(options, 0)
    sys.exit(7)


def _load(framework):
    if framework in ("torch", "ddp"):
        import torch

        torch.set_num_threads(1)


def serve(framework):
    """For each line of stdin, {arguments, cwd, environment}: run it in a child; the line it answers is its status."""
    _load(framework)
    for line in sys.stdin:
        case = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(case["cwd"])
            os.environ.update(case["environment"])
            for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            os.closerange(3, 64)
            main(case["arguments"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        main(sys.argv[1:])
