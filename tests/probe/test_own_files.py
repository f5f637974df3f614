"""Faults around the record: the training's files, output and exit code stay its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.probe.conftest import Train

PLAIN = "from perfscope import step\n"
TORCH = """
import torch, torch.profiler._cupti_monitor  # later it would warn of the missing descriptors
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step():
    model(torch.randn(2, 8)).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
THREAD = (
    TORCH
    + """
import threading
def in_thread(body):
    thread = threading.Thread(target=body); thread.start(); thread.join()
"""
)
PROGRAMS = [
    pytest.param(PLAIN, id="plain"),
    pytest.param(TORCH, id="torch", marks=(pytest.mark.torch, pytest.mark.slow)),
    pytest.param(THREAD, id="torch in a thread", marks=(pytest.mark.torch, pytest.mark.slow)),
]


def program(kind: str, body: str) -> str:
    body = textwrap.dedent(body)
    if "in_thread" not in kind:
        return kind + body
    return kind + "def body():\n" + textwrap.indent(body, "    ") + "\nin_thread(body)\n"


def needs(kind: str) -> None:
    if "torch" in kind:
        pytest.importorskip("torch")


def own_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("perfscope: ")]


@pytest.mark.parametrize(
    "kind", [PROGRAMS[0], pytest.param(TORCH, id="torch", marks=pytest.mark.torch), PROGRAMS[2]]
)
def test_descriptors_closed_and_reused_by_the_training_are_its_own(
    train: Train, tmp_path: Path, kind: str
) -> None:
    needs(kind)
    recorded = train(
        program(
            kind,
            """
            import os, time
            for _ in range(8): step()
            os.closerange(3, 2048)
            own = [open("checkpoint%d" % number, "wb", buffering=0) for number in range(3)]
            for number in (500, 501, 502): os.dup2(own[0].fileno(), number)
            for file in own: file.write(b"MY CHECKPOINT")
            time.sleep(0.3)
            for _ in range(8): step()
            os.write(500, b"!")
            print([os.path.getsize(file.name) for file in own])
            """,
        ),
        overhead=0.5,
    )
    assert recorded.process.stdout == "[14, 13, 13]\n"
    assert recorded.process.stderr == "" and recorded.errors() == []
    assert len(recorded.steps()) in (15, 16) and recorded.meta()["finished"]
    assert len((recorded.rank() / "windows.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("limit", [0, 700])
def test_a_limit_on_the_size_of_files_ends_no_training(train: Train, kind: str, limit: int) -> None:
    needs(kind)
    recorded = train(
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        + program(
            kind,
            """
            import resource, time
            for _ in range(2): step()
            resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, resource.RLIM_INFINITY))
            for _ in range(40):
                time.sleep(0.02); step()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            print(mask, signal.sigpending(), signal.getsignal(signal.SIGXFSZ).name, flush=True)
            """.replace("BYTES", str(limit)),
        ),
        overhead=0.5,
    )
    assert recorded.process.stdout == "set() set() SIG_DFL\n"
    assert recorded.process.stderr.count("\n") == len(own_lines(recorded.process.stderr)) == 1
    assert "File too large" in recorded.process.stderr
    recorded.steps()  # no line is torn


GONE = {
    "removed": "shutil.rmtree(run)",
    "replaced": "os.rename(run, run + '.aside'); shutil.copytree(run + '.aside', run)",
    "renamed": "os.rename(run, run + '.aside')",
    "setuid": "os.setuid(65534)",
    "chroot": "os.chroot(os.getcwd())",
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("fault", GONE)
def test_a_run_directory_out_of_reach_is_said_once_and_not_made_again(
    train: Train, tmp_path: Path, kind: str, fault: str
) -> None:
    needs(kind)
    if fault in ("setuid", "chroot") and os.geteuid() != 0:
        pytest.skip("for root only")
    recorded = train(
        program(
            kind,
            """
            import os, shutil, time, encodings.idna
            run = os.environ["PERFSCOPE_RUN_DIR"]
            for _ in range(2): step()
            FAULT
            for _ in range(40):
                time.sleep(0.01); step()
            print("done", flush=True)
            """.replace("FAULT", GONE[fault]),
        ),
        overhead=0.5,
    )
    assert recorded.process.stdout == "done\n"
    assert own_lines(recorded.process.stderr) == recorded.process.stderr.splitlines()
    assert len(own_lines(recorded.process.stderr)) == 1
    if fault in ("removed", "renamed"):
        assert not recorded.run.exists()
    if fault == "replaced":  # the copy is as it was when it was made
        assert not (recorded.rank() / "windows").exists()
        assert len(recorded.steps()) <= 2


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_full_disk_costs_steps_and_one_line(train: Train, tmp_path: Path, kind: str) -> None:
    needs(kind)
    run = tmp_path / "run"
    run.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "perfscope-test", str(run)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        recorded = train(
            program(
                kind,
                """
                import os, time
                for _ in range(2): step()
                try:
                    with open(os.environ["PERFSCOPE_RUN_DIR"] + "/filler", "wb", buffering=0) as filler:
                        while filler.write(b"x" * 4096): pass
                except OSError as error:
                    print(error.strerror, flush=True)
                for _ in range(40):
                    time.sleep(0.01); step()
                """,
            ),
            overhead=0.5,
        )
        recorded.steps()  # no line is torn
        assert not list(run.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)
    assert recorded.process.stdout == "No space left on device\n"
    assert recorded.process.stderr.count("\n") == len(own_lines(recorded.process.stderr)) == 1
    assert "No space left on device" in recorded.process.stderr


@pytest.mark.parametrize("kind", PROGRAMS)
def test_no_descriptor_left_at_the_start_is_one_line(train: Train, kind: str) -> None:
    needs(kind)
    recorded = train(
        program(
            kind,
            """
            import os
            held = []
            for _ in range(0 if "torch" in globals() else 1): import perfscope
            try:
                while True: held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError as error:
                print(error.strerror)
            for _ in range(8): step()
            for one in held: os.close(one)
            print("done")
            """,
        ),
        overhead=0.5,
    )
    assert recorded.process.stdout == "Too many open files\ndone\n"
    assert own_lines(recorded.process.stderr) == recorded.process.stderr.splitlines()
    assert len(own_lines(recorded.process.stderr)) <= 1


@pytest.mark.torch
def test_training_in_another_thread_has_windows_and_a_clean_stderr(train: Train) -> None:
    needs(THREAD)
    recorded = train(
        program(
            THREAD,
            """
            import ctypes
            for _ in range(12): step()
            libc = ctypes.CDLL(None)
            libc.fputs(b"still C's stderr\\n", ctypes.c_void_p.in_dll(libc, "stderr"))
            """,
        ),
        overhead=0.5,
    )
    assert recorded.process.stderr == "still C's stderr\n"
    assert recorded.marks("step") == ["3", "4", "5"] and "Linear" in recorded.marks("layer")


FAILING = {
    "backward": "(torch.ones(3, requires_grad=True) * 2).backward()",
    "backward of the user's": "Broken.apply(torch.ones(3, requires_grad=True)).sum().backward()",
    "loader": "list(torch.utils.data.DataLoader([0, 1], collate_fn=lambda items: items[5]))",
    "arguments": "torch.autograd.backward(surprise=1)",
    "compile": "torch.compile(lambda x: x.nothing, backend='eager')(torch.ones(2))",
    "import": "sys.path.insert(0, 'lib'); del sys.modules['torch']; import mxnet",
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what == "import" else pytest.mark.slow) for what in FAILING]
)
def test_tracebacks_have_no_frame_of_perfscope(train: Train, tmp_path: Path, what: str) -> None:
    needs(TORCH)
    broken = tmp_path / "lib" / "mxnet"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no such library')\n")
    code = TORCH + textwrap.dedent(
        """
        import sys
        class Broken(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): raise ValueError("mine")
        for _ in range(2): step()
        """
    )
    code += FAILING[what] + "\n"
    recorded = train(code, check=False)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PERFSCOPE", "PYTHON"))
    }
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env={**clean, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert plain.returncode == recorded.process.returncode == 1
    assert "Traceback" in plain.stderr
    assert recorded.process.stderr == plain.stderr


def test_steps_of_other_threads_are_named_as_missing(train: Train) -> None:
    recorded = train(
        """
        import threading, perfscope
        for _ in range(3): perfscope.step()
        begin, done = threading.Event(), threading.Barrier(3)
        def work():
            begin.wait()
            for _ in range(20): perfscope.step()
            done.wait()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        begin.set()
        done.wait()
        for thread in threads: thread.join()
        """
    )
    assert len(recorded.steps()) == 2
    missing = {entry["what"]: entry["reason"] for entry in recorded.meta()["missing"]}
    assert "40 steps were made in other threads" in missing["steps of other threads"]
