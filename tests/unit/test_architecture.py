"""The rooms of the package and the arrows between them. ARCHITECTURE.md draws the same picture."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

import perfscope

PACKAGE = Path(perfscope.__file__).parent

# room -> rooms it may import. Leaves (errors, units, volumes, children, settings) every room but probes may
# use, the vocabulary every room.
ARROWS: dict[str, set[str]] = {
    "vocabulary": set(),
    "errors": set(),
    "units": set(),
    "volumes": set(),
    "children": set(),
    "settings": set(),
    "messages": {"vocabulary"},
    "rundir": {"vocabulary"},
    "probes": {"rundir", "vocabulary"},
    "collectors": {"rundir"},
    "ingest": {"rundir"},
    "launch": {"rundir", "messages", "collectors"},  # of the collectors GPUs alone, see below
    "checkout": {"messages"},
    "analysis": {"rundir", "messages"},
    "runners": {"rundir", "messages", "collectors"},  # as launch
    "slurm": {"rundir"},
    "gate": {"rundir", "analysis", "messages"},
    "reports": {"rundir", "analysis", "gate", "messages"},  # of rundir the records alone, see below
    "cli": {
        *("rundir", "ingest", "launch", "checkout", "analysis", "gate", "messages", "reports", "collectors"),
        "runners",
        "slurm",
    },
    "__main__": {"cli"},
    "__init__": set(),
}
LEAVES = {"errors", "units", "volumes", "children", "settings", "vocabulary", "__init__"}
SHARED = (
    "rundir/layout.py",
    "rundir/seal.py",
    "rundir/sampler_call.py",
    "rundir/last_word.py",
)  # loaded by ranks, too
ASKED = "checkout/module_origins.py"  # run by whatever Python the user's command has
STDLIB_ONLY = ("probes", "vocabulary", *SHARED, ASKED, "__init__.py")


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Absolute names of every module `path` imports anywhere, type checking included."""
    package = ["perfscope", *path.relative_to(PACKAGE).parent.parts]
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{stem}.{alias.name}" for alias in node.names]
    return found


def test_every_import_follows_an_arrow() -> None:
    wrong = []
    for path in sources():
        here = room(path)
        assert here in ARROWS, f"{path} is in a room that ARCHITECTURE.md does not know"
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "perfscope" or len(parts) < 2 or parts[1] == here:
                continue
            target = (
                parts[1]
                if (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists()
                else "__init__"
            )
            if target not in ARROWS[here] and not (target in LEAVES and here != "probes"):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_reports_know_of_a_run_directory_only_its_records() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in (PACKAGE / "reports").rglob("*.py")
        for name in imports(path)
        if name.startswith("perfscope.rundir") and not name.startswith("perfscope.rundir.records.")
    ]
    assert wrong == []


def test_launch_and_runners_ask_the_collectors_for_gpus_only() -> None:
    allowed = ("perfscope.collectors.gpu.registry.", "perfscope.collectors.context.")
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for room_name in ("launch", "runners")
        for path in (PACKAGE / room_name).rglob("*.py")
        for name in imports(path)
        if name.startswith("perfscope.collectors") and not name.startswith(allowed)
    ]
    assert wrong == []


# Vendors of GPUs by name, outside their own package: names that others gave to their files and variables.
VENDOR_WORDS = re.compile(r"nvml|nvidia|amdgpu|amdsmi|\bkfd\b|\brocm|nvlink[-_.]|\"nvlink", re.IGNORECASE)
VENDORS_ALLOWED = {
    "collectors/memory/uncore.py",  # the kernel's name for the memory controllers of a Grace processor
    "ingest/formats/jax.py",  # names in traces
    "probes/jax/describe.py",  # JAX's name of a platform
    "rundir/environment_names.py",  # variables of NVIDIA's and AMD's runtimes
    "rundir/old_gpu_words.py",  # what earlier versions recorded
}


def test_only_the_package_of_gpu_vendors_knows_a_vendor() -> None:
    wrong = []
    for path in sources():
        name = path.relative_to(PACKAGE).as_posix()
        is_allowed = name.startswith(("collectors/gpu/", *VENDORS_ALLOWED))
        if is_allowed or not VENDOR_WORDS.search(path.read_text(encoding="utf-8")):
            continue
        with path.open("rb") as file:
            found = [
                token
                for token in tokenize.tokenize(file.readline)
                if token.type != tokenize.COMMENT and VENDOR_WORDS.search(token.string)
            ]
        wrong += [f"{name}:{token.start[0]}: {token.string[:60]}" for token in found]
    assert wrong == []


def test_vendors_of_gpus_do_not_know_each_other() -> None:
    package = PACKAGE / "collectors" / "gpu"
    vendors = sorted(path.parent.name for path in package.glob("*/vendor.py"))
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for vendor in vendors
        for path in (package / vendor).rglob("*.py")
        for name in imports(path)
        if any(name.startswith(f"perfscope.collectors.gpu.{other}.") for other in vendors if other != vendor)
    ]
    assert len(vendors) == 2 and wrong == []


# A typed record read as a mapping, by the names that it has where it is used; mypy finds it under any name.
# launch, slurm and ingest handle the documents that they write.
RECORD_AS_MAPPING = re.compile(
    r"(?:\b(?:reader|analysis|source|evidence)\.run|(?<!context\.)\bmeta|\brank_(?:records|meta)(?:\[\w+\]|\(\w+\)))"
    r"(?:\.get\(|\[[\"'])"
)
READERS = ("analysis", "gate", "reports", "cli")
BENCH_JSON = (
    "analysis/bench.py",
    "analysis/bench_bytes.py",
    "analysis/study/gather.py",
)  # a record of the bench


def test_records_of_a_run_are_read_by_attribute() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sources()
        if room(path) in READERS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if RECORD_AS_MAPPING.search(line)
    ]
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    names = {".".join(["perfscope", *p.relative_to(PACKAGE).with_suffix("").parts]): p for p in sources()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    for name, path in names.items():
        graph[name] = {
            candidate
            for imported in imports(path)
            for candidate in (imported, imported.rpartition(".")[0])
            if candidate in names and candidate != name and not name.startswith(candidate + ".")
        }

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        for target in graph[start] - seen:
            seen.add(target)
            if target == goal or reaches(target, goal, seen):
                return True
        return False

    assert [name for name in graph if reaches(name, name, set())] == []


@pytest.mark.parametrize("place", STDLIB_ONLY)
def test_code_that_runs_inside_the_training_uses_the_standard_library_only(place: str) -> None:
    root = PACKAGE / place
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in ("perfscope", "sitecustomize"), f"{path}: {name}"


def test_code_that_runs_inside_the_training_parses_as_python_3_8() -> None:
    for path in [
        *sorted((PACKAGE / "probes").rglob("*.py")),
        *sorted((PACKAGE / "vocabulary").rglob("*.py")),
        *(PACKAGE / name for name in (*SHARED, ASKED)),
    ]:
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_vocabulary_holds_enums_frozen_rows_and_constants_only() -> None:
    """A drawer for everything is what it would become: no function, no work at import, no other class."""
    for path in sorted((PACKAGE / "vocabulary").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            what = f"{path.name}:{node.lineno}"
            if isinstance(node, ast.ClassDef):
                is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
                is_row = [ast.unparse(one) for one in node.decorator_list] == ["dataclass(frozen=True)"]
                assert is_enum or is_row or [ast.unparse(one) for one in node.bases] == ["NamedTuple"], what
                assert all(isinstance(one, ast.Expr | ast.Assign | ast.AnnAssign) for one in node.body), what
            else:
                allowed = (ast.Expr, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
                assert isinstance(node, allowed), what
            if isinstance(node, ast.Expr):
                assert isinstance(node.value, ast.Constant), what  # docstrings, no calls


BY_HAND = re.compile(r"""\{'s' if |'' if [^"]* == 1 else 's'|and \{len\([^"]*\} more" if len\(""")
# They write their few lines without the room.
WITHOUT_MESSAGES = ("probes", "rundir", "collectors", "ingest", "messages")


def test_plurals_and_lists_are_made_in_one_place() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sources()
        if room(path) not in WITHOUT_MESSAGES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BY_HAND.search(line)
    ]
    assert wrong == []


# Sentences still made in the analysis, by folder or module: strings with a space in them. The numbers only
# fall: new sentences go to perfscope/messages.
SENTENCES = {
    "absent.py": 8,
    "affected.py": 13,
    "bench.py": 8,
    "bench_bytes.py": 7,
    "collectives.py": 10,
    "critical": 14,
    "findings": 241,
    "layer_comm.py": 6,
    "machine": 159,
    "predict": 68,
    "run.py": 2,
    "scaling": 8,
    "spans.py": 1,
    "study": 14,
    "timeline_extract.py": 1,
    "waits": 26,
    "whatif": 36,
}


def sentences(path: Path) -> int:
    """String constants with a space, but docstrings, what errors say, and what is logged."""
    tree = ast.parse(path.read_text())
    other: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            other.add(id(node.value))
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
            ("log.", "_log.", "logging.")
        )
        if isinstance(node, ast.Raise) or is_log:
            other.update(id(inner) for inner in ast.walk(node))
    return sum(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value.strip()
        and id(node) not in other
        for node in ast.walk(tree)
    )


def test_the_analysis_makes_no_new_sentences() -> None:
    found = Counter[str]()
    for path in (PACKAGE / "analysis").rglob("*.py"):
        found[path.relative_to(PACKAGE / "analysis").parts[0]] += sentences(path)
    wrong = {name: count for name, count in found.items() if count > SENTENCES.get(name, 0)}
    assert wrong == {}, "to perfscope/messages, or into a table there"
    assert {name for name in SENTENCES if not found[name]} == set()


def test_modules_stay_small() -> None:
    for path in sources():
        tree = ast.parse(path.read_text())
        assert len(path.read_text().splitlines()) <= 520, f"{path} is more than one thing"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 75, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize(
    "arguments",
    [
        "-c import perfscope",
        *(f"-m perfscope {one}--help" for one in ("", "run ", "check ", "bench frameworks ")),
    ],
)
def test_starting_up_loads_nothing_heavy(arguments: str) -> None:
    flag, _, rest = arguments.partition(" ")
    command = [sys.executable, "-X", "importtime", flag, *([rest] if flag == "-c" else rest.split())]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in log.splitlines() if "|" in line}
    assert not loaded & {"torch", "pandas", "numpy", "pyarrow", "matplotlib", "bokeh", "typst", "jinja2"}
