"""Size, shape and import cost of the code of a checkout, so that two of them can be compared.

    python benchmarks/house_measures.py . ../old                 # a column for each checkout
    git archive 4f05660 | tar x -C ../old                        # a checkout without git
    python benchmarks/house_measures.py . --nouns                # generic names, by name and by module
    python benchmarks/house_measures.py . --json --no-import

Product code is perfscope/**/*.py. A function is as long as the lines from its `def` to its last one. A
binding is a name that is assigned to, or a parameter. The import of `perfscope report` is that of
perfscope/cli/report.py, perfscope/api/documents.py and every module that their functions import. Its cost is
the CPU time (user + system) of a fresh interpreter, the least of `--repeats`, without that of one that
imports numpy and pyarrow only. The bytecode is compiled beforehand into a temporary folder, also where
PYTHONDONTWRITEBYTECODE is set: compiling takes longer than all else of an import. A cost depends on the
machine: measure both checkouts in the same call.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

# Names that say nothing about the value.
GENERIC = frozenset(
    {"one", "found", "known", "told", "own", "said", "words", "rest", "shown", "whole", "place", "places"}
    | {"others", "who", "some", "somebody", "nobody"}
)
# The dialect in docstrings and comments; "nobody" in quotes is the account.
DIALECT = re.compile(
    r"\b(?:un)?told\b|\bstands? in\b|\blies? in\b|\bh[eo]ld against\b|\b(?:some|any)body(?: else)?\b"
    r"|(?<!\")\bnobody\b",
    re.I,
)
LONG_FUNCTION = 60
BASE = "import numpy, pyarrow"
HELP = """
import contextlib, io
from perfscope.cli.main import cli
with contextlib.redirect_stdout(io.StringIO()):
    cli(["--help"], standalone_mode=False)
"""
REPORT = ("perfscope/cli/report.py", "perfscope/api/documents.py")
TIMED = """
import sys, time
{}
print(time.process_time(), sum(name.partition(".")[0] == "perfscope" for name in sys.modules))
"""


@dataclass
class Shape:
    """What the syntax trees of a checkout give."""

    module_lines: list[int] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)  # (lines, path:line name)
    num_dataclasses: int = 0
    num_structs: int = 0
    num_bindings: int = 0
    nouns: collections.Counter[str] = field(default_factory=collections.Counter)
    nouns_by_module: collections.Counter[str] = field(default_factory=collections.Counter)
    dialect: collections.Counter[str] = field(default_factory=collections.Counter)


def read_shape(checkout: Path) -> Shape:
    """Measure the product code of a checkout."""
    shape = Shape()
    for path in sorted((checkout / "perfscope").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        shape.module_lines.append(len(text.splitlines()))
        shape.dialect.update(match.lower() for match in DIALECT.findall(text))
        for node in ast.walk(ast.parse(text)):
            _count(node, str(path.relative_to(checkout)), shape)
    return shape


def _count(node: ast.AST, module: str, shape: Shape) -> None:
    """Add one node of a syntax tree to `shape`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        shape.functions.append((lines, f"{module}:{node.lineno} {node.name}"))
    elif isinstance(node, ast.ClassDef):
        shape.num_dataclasses += any(
            "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
        )
        shape.num_structs += any(ast.unparse(base).split(".")[-1] == "Struct" for base in node.bases)
    name = _bound_name(node)
    if name is not None:
        shape.num_bindings += 1
        if name in GENERIC:
            shape.nouns[name] += 1
            shape.nouns_by_module[module] += 1


def _bound_name(node: ast.AST) -> str | None:
    """The name that a node binds: an assignment, a loop variable, a parameter."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def report_imports(checkout: Path) -> str:
    """The imports of the command `report`, those inside its functions included, as one statement a line."""
    trees = [ast.parse(path.read_text("utf-8")) for name in REPORT if (path := checkout / name).exists()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join(ast.unparse(node) for node in imports if "__future__" not in ast.unparse(node))


def import_cost(checkout: Path, statement: str, repeats: int, bytecode: str) -> tuple[float, int]:
    """CPU seconds of a fresh interpreter that runs `statement`, and modules of perfscope that it imports.

    Args:
        bytecode: Folder of compiled modules.

    Raises:
        subprocess.CalledProcessError: The statement fails in this checkout.
    """
    env = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", TIMED.format(statement)]
    best, modules = float("inf"), 0
    for _ in range(repeats + 1):  # the first one compiles
        output = subprocess.run(
            command, cwd=checkout, env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        seconds, count = output.split()
        best, modules = min(best, float(seconds)), int(count)
    return best, modules


def measure(checkout: Path, repeats: int) -> dict[str, float | int | str]:
    """The measurements of a checkout, by name; import costs only if `repeats` is not 0."""
    shape = read_shape(checkout)
    lengths = [lines for lines, _ in shape.functions]
    longest, where = max(shape.functions)
    nouns = sum(shape.nouns.values())
    values: dict[str, float | int | str] = {
        "lines of product code": sum(shape.module_lines),
        "modules": len(shape.module_lines),
        "lines per module, median": statistics.median(shape.module_lines),
        "lines per module, most": max(shape.module_lines),
        "functions": len(lengths),
        "lines per function, median": statistics.median(lengths),
        "lines of the longest function": longest,
        "longest function": where,
        f"functions of more than {LONG_FUNCTION} lines": sum(lines > LONG_FUNCTION for lines in lengths),
        "dataclasses": shape.num_dataclasses,
        "structs (msgspec)": shape.num_structs,
        "bindings": shape.num_bindings,
        "bindings with a generic noun": nouns,
        "generic nouns, percent of bindings": round(100 * nouns / shape.num_bindings, 2),
        "words of the dialect in the text": sum(shape.dialect.values()),
    }
    if repeats:
        with tempfile.TemporaryDirectory() as bytecode:
            base, _ = import_cost(checkout, BASE, repeats, bytecode)
            report = f"{BASE}\n{report_imports(checkout)}"
            seconds, modules = import_cost(checkout, report, repeats, bytecode)
            help_s, _ = import_cost(checkout, HELP, repeats, bytecode)
        values["modules imported by `perfscope report`"] = modules
        values["CPU s of that import beyond numpy + pyarrow"] = round(seconds - base, 3)
        values["CPU s of `perfscope --help`"] = round(help_s, 3)
    return values


def print_nouns(checkout: Path) -> None:
    """Print generic names and words of the dialect of a checkout, most frequent first."""
    shape = read_shape(checkout)
    for title, counter in (
        ("names", shape.nouns),
        ("modules", shape.nouns_by_module),
        ("words in the text", shape.dialect),
    ):
        print(f"{checkout}: {title}")
        for name, count in counter.most_common():
            print(f"  {count:5} {name}")


def main() -> None:
    """Print the measurements of the checkouts that are given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=7, help="imports that are timed; default 7")
    parser.add_argument("--no-import", action="store_true", help="leave the costs of imports out")
    parser.add_argument("--nouns", action="store_true", help="list generic names instead")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.nouns:
        for checkout in args.checkouts:
            print_nouns(checkout)
        return
    columns = {str(path): measure(path, 0 if args.no_import else args.repeats) for path in args.checkouts}
    if args.json:
        print(json.dumps(columns, indent=2))
        return
    for name in next(iter(columns.values())):
        print(f"{name:46}" + "".join(f"  {column[name]!s:>24}" for column in columns.values()))


if __name__ == "__main__":
    main()
