"""The rooms of the package and the arrows between them. ARCHITECTURE.md draws the same picture."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfscope
from perfscope.rundir.typed import Record

PACKAGE = Path(perfscope.__file__).parent

# room -> rooms it may import. Leaves (errors, units, volumes, children, settings, kernel_text, notices) every
# room but probes may use, the vocabulary every room.
ARROWS: dict[str, set[str]] = {
    "vocabulary": set(),
    "errors": set(),
    "units": set(),
    "volumes": set(),
    "children": set(),
    "settings": set(),
    "lean_imports": set(),
    "cycle_collector": set(),
    "kernel_text": set(),
    "notices": set(),
    "tasks": set(),
    "engines": set(),
    "messages": {"vocabulary"},
    "rundir": {"vocabulary"},
    "probes": {"rundir", "vocabulary"},
    "collectors": {"rundir"},
    "ingest": {"rundir"},
    "launch": {"rundir", "messages", "collectors"},  # of the collectors GPUs alone, see below
    "checkout": {"messages"},
    "analysis": {"rundir", "messages"},
    "live": {"rundir", "analysis", "messages", "reports", "collectors"},
    "runners": {"rundir", "messages", "collectors"},  # as launch
    "slurm": {"rundir"},
    "gate": {"rundir", "analysis", "messages"},
    "reports": {"rundir", "analysis", "gate", "messages"},  # of rundir the records alone, see below
    "cli": {
        *("rundir", "ingest", "launch", "checkout", "analysis", "gate", "messages", "reports", "collectors"),
        *("runners", "slurm", "api", "engines", "live"),
    },
    "api": {"rundir", "ingest", "analysis", "messages", "reports", "engines"},
    "__main__": {"cli", "lean_imports", "cycle_collector"},
    "phase_marks": set(),
    "integrations": set(),
    "__init__": {"phase_marks", "api"},  # the latter on first use
}
LEAVES = {
    "cycle_collector",
    "errors",
    "units",
    "volumes",
    "children",
    "settings",
    "kernel_text",
    "notices",
    "lean_imports",
    "tasks",
    "vocabulary",
    "__init__",
}
SHARED = (
    "rundir/layout.py",
    "rundir/seal.py",
    "rundir/sampler_call.py",
    "rundir/last_word.py",
)  # loaded by ranks, too
ASKED = "checkout/module_origins.py"  # run by whatever Python the user's command has
STDLIB_ONLY = ("probes", "vocabulary", *SHARED, ASKED, "phase_marks.py", "__init__.py")


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


RECORDS = (
    "records",
    "scheme_records",
    "host_records",
    "sample_facts",
    "window_records",
    "storage_records",
    "inspector_records",
    "typed",
)


def test_reports_know_of_a_run_directory_only_its_records() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in (PACKAGE / "reports").rglob("*.py")
        for name in imports(path)
        if name.startswith("perfscope.rundir") and name.split(".")[2] not in RECORDS
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


# English is made in perfscope/messages. In the analysis and the gate a text of WORDS words or more is the
# message of an error, or has its reason here.
WORDS = 5
NO_ENGLISH = {
    "analysis/findings/numactl.py": "shell commands",
    "analysis/machine/tracks.py": "titles of lines, each beside its metric and unit",
    "analysis/predict/networks.py": "sources of published figures",
    "analysis/study/grouping.py": "a pattern of names, and the message of an error that lists them",
    "analysis/scaling/fits.py": "a formula",
    "gate/config.py": "parts of the messages of errors",
    "gate/explain/conditions.py": "names of environment variables",
    "gate/store/json_file.py": "messages of errors",
    "gate/store/sqlite_file.py": "SQL, and the messages of errors",
}


def sentences(code: str) -> list[tuple[int, str]]:
    """(line, text) of texts of WORDS words or more, but docstrings, what errors say, and what is logged."""
    found = []
    nodes: list[ast.AST] = [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Raise) or is_docstring or called.endswith("Error") or "log." in called:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
            nodes += [part for part in node.values if not isinstance(part, ast.Constant)]
        else:
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            nodes += ast.iter_child_nodes(node)
        if " " in text and len(re.findall(r"[A-Za-z']+", text)) >= WORDS:
            found.append((getattr(node, "lineno", 0), text))
    return found


def test_the_analysis_and_the_gate_make_no_sentences() -> None:
    found: list[str] = []
    for room_name in ("analysis", "gate"):
        for path in (PACKAGE / room_name).rglob("*.py"):
            name = path.relative_to(PACKAGE).as_posix()
            texts = [f"{name}:{line}: {text}" for line, text in sentences(path.read_text())]
            assert texts or name not in NO_ENGLISH, f"{name} needs no exception any more"
            if name not in NO_ENGLISH:
                found += texts
    assert found == [], "to perfscope/messages"


def test_what_counts_as_a_sentence() -> None:
    code = (
        '"""A docstring of more than five words."""\n'
        'raise ValueError("the message of an error is none")\n'
        'first = f"{done} of {total} ranks ended before the others"\n'
        'second = {"key": "A plain sentence with five words."}\n'
        'third = "exposed_comm"\n'
    )
    assert sorted(line for line, _ in sentences(code)) == [3, 4]


def test_modules_stay_small() -> None:
    for path in sources():
        tree = ast.parse(path.read_text())
        assert len(path.read_text().splitlines()) <= 520, f"{path} is more than one thing"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


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


OF_THE_PROJECT = {"architecture", "docs", "docs_hardware", "extending", "pictures"}


def test_unit_tests_mirror_the_packages() -> None:
    root = Path(__file__).parent
    for path in root.rglob("*.py"):
        name = path.stem.removeprefix("test_")
        if path.parent == root and path.stem != "__init__":
            assert name in OF_THE_PROJECT or (PACKAGE / f"{name}.py").exists(), f"{path}: of which package?"
        assert (PACKAGE / path.parent.relative_to(root)).is_dir(), f"{path}: there is no such package"
        assert path.stem.startswith("test_") or path.stem == "__init__", f"{path}: to tests/support"


# Documents that are still read by key. A new file here needs a reason; a typed record is the better way.
READ_BY_KEY = {
    "cli/doctor/machine.py": "the surroundings of the machine, as just read",
    "analysis/study/frameworks.py": "options of a framework run, by name",
    "cli/bench/frameworks_text.py": "frameworks.json of a comparison",
    "cli/bench/text.py": "the plan of a bench run, before it is one",
    "gate/measure.py": "means by part of the step, made there",
    "reports/drawing/page.py": "data of a panel, made beside it",
    "reports/sections/learning.py": "reasons of what is missing, by figure",
    "reports/summary.py": "the key figures, made beside it",
    "reports/text.py": "cells of a list, made beside it",
}
# What has keys of its own: labels of series and runs, cells of a sweep.
OTHER_MAPPINGS = ("labels", "settings")


def test_no_document_of_a_run_is_read_by_key() -> None:
    """No `.get("key")`, with a key of a typed record, in what reads run directories."""
    keys = {field.encode_name for kind in record_types() for field in msgspec.structs.fields(kind)}
    found = {
        f"{path.relative_to(PACKAGE)}:{call.lineno} {ast.unparse(call)}"
        for room in ("analysis", "gate", "messages", "reports", "cli")
        for path in (PACKAGE / room).rglob("*.py")
        if path.relative_to(PACKAGE).as_posix() not in READ_BY_KEY
        for call in calls_of_get(ast.parse(path.read_text()))
        if call.args[0].value in keys and not ast.unparse(call.func.value).endswith(OTHER_MAPPINGS)
    }
    assert sorted(found) == []


def record_types() -> list[type[Record]]:
    modules = (importlib.import_module(f"perfscope.rundir.{name}") for name in RECORDS)
    every = (kind for module in modules for kind in vars(module).values() if isinstance(kind, type))
    return [kind for kind in every if issubclass(kind, Record)]


def calls_of_get(tree: ast.AST) -> Iterator[Any]:
    """Calls of a method `get` with a string, written out, as the first argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node


# Spellings of other Englishes; words that name recorded values ("cpu_neighbour") are left out.
NOT_AMERICAN = re.compile(
    r"\banalys(?:e|ed|ing)(?![a-z])|colour|centre[ds]?(?![a-z])|behaviour", re.IGNORECASE
)


def test_names_and_texts_are_spelled_as_in_the_united_states() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sources()
        if path.name != "old_words.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NOT_AMERICAN.search(line.replace("_", " "))
    ]
    assert wrong == []


def test_names_say_what_a_value_is() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "house_measures.py"
    measures = runpy.run_path(str(path))
    shape = measures["read_shape"](PACKAGE.parent)
    generic = sum(shape.nouns.values())
    assert shape.num_bindings > 50_000
    assert generic <= 0.001 * shape.num_bindings, shape.nouns_by_module.most_common(20)
