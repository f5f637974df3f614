"""First code of perfscope in a Python process: decide whether to arm, and cost nothing if not.

sitecustomize (beside this file, in site/) loads this file by path and calls `start`. The rest of
the room is loaded only once the process imports a framework, under the private package name
`_perfscope`, so that a training environment without perfscope works and one that has another
version of it is not disturbed.
"""

import os
import sys

if False:  # for type checkers; importing typing would cost every Python process under the command
    from typing import Any

ENV_RUN_DIR = "PERFSCOPE_RUN_DIR"
_PACKAGE = "_perfscope"
# What is waited for -> the probe of this room that `arm`s once that module has been imported.
_FRAMEWORKS = {
    "torch": "torch.probe",
    "torch.distributed.checkpoint.state_dict_saver": "torch.besides",
    "safetensors.torch": "torch.besides",
    "tensorflow": "tensorflow.probe",
    "keras": "keras.probe",
    "tf_keras": "keras.probe",
    "jax": "jax.probe",
    "mxnet": "mxnet.probe",
    "horovod.torch": "horovod.probe",
    "horovod.tensorflow": "horovod.probe",
    "horovod.mxnet": "horovod.probe",
    "mpi4py.MPI": "mpi.probe",
    "lightning.pytorch.profilers.profiler": "hooks.lightning",
    "pytorch_lightning.profilers.profiler": "hooks.lightning",
    "transformers.trainer": "hooks.transformers",
    "nvtx.nvtx": "hooks.nvtx",
}

_failed: "list[Exception]" = []  # of `step` and `phases`: they would fail every time
_phases: "list[Any]" = []


def step(samples: "Any" = None) -> None:
    """`perfscope.step()` of this process: the training itself says where its steps begin."""
    if _failed:
        return
    try:
        import importlib

        importlib.import_module(_load_room() + ".own_steps").boundary(samples)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
        _failed.append(error)
        _note_boot_error(error)


def phases() -> "Any":
    """What `perfscope.phase()` marks with: probes.phases.Phases of this process; None: it cannot be had."""
    if not _phases and not _failed:
        try:
            import importlib

            process = importlib.import_module(_load_room() + ".process").current()
            _phases.append(process.phases)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
            _failed.append(error)
            _note_boot_error(error)
    return _phases[0] if _phases else None


def label(labels: "Any") -> None:
    """Labels of the run that the program gives: a dictionary of text."""
    if phases() is not None:
        _process("label", labels)


def samples(count: "Any") -> None:
    """Samples of each forward pass of the model from now on, by the program; None: perfscope counts them."""
    if phases() is not None:
        _process("tell_samples", count)


def _process(method: str, *args: "Any") -> None:
    try:
        import importlib

        getattr(importlib.import_module(_load_room() + ".process").current(), method)(*args)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
        _failed.append(error)
        _note_boot_error(error)


def start() -> None:
    """Arm this process. Called once, at interpreter start; never raises for a missing set-up."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if not run_dir:
        return
    # Kineto announces every profiler start and stop on stderr ("USDT: ..."): training's stderr must
    # stay as it was. Must be set before torch loads; a value of the user's own wins.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    sys.meta_path.insert(0, _Awaiter())


class _Awaiter:
    """Meta path finder that waits for frameworks; for each it steps aside once it has been imported.

    It never loads anything itself: it lets the other finders find the module, wraps `exec_module`
    on that one loader instance, and undoes the wrap before the module's code runs. It waits until the
    module really runs: `importlib.util.find_spec("torch")` is how libraries ask whether torch is there.
    """

    def __init__(self) -> None:
        self._asking: "set[str]" = (
            set()
        )  # names the other finders are being asked for; under their import locks
        self._waiting = set(_FRAMEWORKS)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "Any":
        if fullname not in self._waiting or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            import importlib.util  # not at the top: most processes never get here

            spec = importlib.util.find_spec(fullname)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                self._wrap(fullname, spec.loader)
                return spec
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the import must go on without us
            _note_boot_error(error)
        finally:
            self._asking.discard(fullname)
        return None

    def _wrap(self, fullname: str, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            loader.__dict__.pop("exec_module", None)  # `torch.__loader__` is pristine for the one who looks
            self._waiting.discard(fullname)
            try:
                execute(module)
            except BaseException as error:
                _hide_frames(error)
                raise
            _arm(fullname)

        loader.exec_module = exec_module


def _arm(framework: str) -> None:
    import importlib

    try:
        probes = _load_room()
        importlib.import_module(probes + "." + _FRAMEWORKS[framework]).arm(framework)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
        _note_boot_error(error)


def _hide_frames(error: BaseException) -> None:
    """A framework that cannot be imported: the traceback is as if this file were not there."""
    import importlib

    try:
        importlib.import_module(_load_room() + ".frames").hide_frames(error)
    except Exception as second:  # noqa: BLE001 - the training's own error goes on, with a frame of ours
        _note_boot_error(second)


def _load_room() -> str:
    """Make `_perfscope` importable from the folder this file is in; return the probes package name."""
    import importlib.util

    if _PACKAGE not in sys.modules:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = module
        spec.loader.exec_module(module)
    return _PACKAGE + ".probes"


def _note_boot_error(error: Exception) -> None:
    """One line in the run directory; where that fails, on stderr, and to this host's `perfscope run`."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if not run_dir:  # the program has emptied its environment
        _say("this process is not recorded: %s" % " ".join(str(error).split())[:300])
        return
    path = os.path.join(run_dir, "boot-errors.txt")
    try:
        text = "pid %d: %s: %s\n" % (os.getpid(), type(error).__name__, " ".join(str(error).split()))
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as unwritten:
        _say("this process is not recorded: %s" % " ".join(str(error).split())[:300])
        _send_word(run_dir, error if isinstance(error, OSError) else unwritten)


def _send_word(run_dir: str, error: OSError) -> None:
    try:
        import importlib

        _load_room()
        importlib.import_module(_PACKAGE + ".rundir.last_word").send(run_dir, error)
    except Exception:  # noqa: BLE001 - without a free descriptor nothing is imported; a directory needs none
        try:
            os.mkdir(os.path.join(run_dir, "unwritten-%d-%d" % (os.getpid(), error.errno or 0)))
        except OSError:  # no channel is left; training goes first
            return


def _stderr() -> "Any":
    try:
        state = os.fstat(2)
    except OSError:
        return None  # closed
    return state.st_dev, state.st_ino


_STDERR = _stderr()
_said: "list[str]" = []


def _say(text: str) -> None:
    """One `perfscope:` line, the first only; not where descriptor 2 has become a file of the program's."""
    if _said or _STDERR is None or _stderr() != _STDERR:
        return
    _said.append(text)
    try:
        os.write(2, ("perfscope: %s\n" % text).encode("utf-8", "backslashreplace"))
    except OSError:  # there is no channel left
        return
