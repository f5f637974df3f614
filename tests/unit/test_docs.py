"""The documentation as a whole: a page per command, links that lead somewhere, one line width."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

import perfscope
from perfscope.cli.main import COMMANDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = Path(perfscope.__file__).parent
SITE = ROOT / "docs" / "_site"
sys.path.insert(0, str(SITE))

from command_pages import command_pages  # noqa: E402
from example_reports import REPORTS, with_links  # noqa: E402

ROOT_PAGES = ["README.md", "ARCHITECTURE.md"]
PAGES = [*ROOT_PAGES, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
WORDING = tomllib.loads((ROOT / "tests" / "wording.toml").read_text(encoding="utf-8"))
REWRITTEN = sorted(
    {str(path.relative_to(ROOT)) for one in WORDING["paths"] for path in ROOT.glob(one)}
    - set(WORDING["except"])
)
WIDTH = 100
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def prose(page: str) -> str:
    """A page without its blocks of code; lines keep their numbers."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def entries(navigation: Any) -> Iterator[str]:
    """The pages of a mkdocs navigation."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for one in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from entries(one)


# Where texts that users see are written.
SHOWN = ("analysis", "api", "checkout", "cli", "gate", "launch", "messages", "reports", "runners", "slurm")
INSTEAD = {re.compile(words, re.IGNORECASE): instead for words, instead in WORDING["instead"].items()}


def is_help(node: ast.AST) -> bool:
    """Whether click prints the docstring of a function."""
    return isinstance(node, ast.FunctionDef) and "command(" in " ".join(map(ast.unparse, node.decorator_list))


def shown_texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the texts in a module, but docstrings that nobody is shown."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and not is_help(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, re.sub(r"`[^`]*`", "", node.value)


def test_texts_of_the_package_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {match[0]!r}: write {instead}"
        for package in SHOWN
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for line, text in shown_texts(path)
        if " " in text
        for words, instead in INSTEAD.items()
        if (match := words.search(text))
    ]
    assert found == []


def test_every_command_has_a_page_with_its_options() -> None:
    pages = command_pages()
    assert list(pages) == list(COMMANDS)
    for name, text in pages.items():
        assert text.startswith(f"# perfscope {name}\n")
        assert "| `-h, --help` | Show this message and exit. |" in text
    assert "| `--windows INTEGER RANGE` |" in pages["run"]
    assert "### perfscope bench env create" in pages["bench"]


def test_every_page_is_in_the_navigation() -> None:
    nav = list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(nav) == len(set(nav))
    assert sorted(one for one in nav if one.startswith("commands/")) == sorted(
        f"commands/{name}.md" for name in COMMANDS
    )
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    written |= {f"tutorials/{path.stem}.md" for path in (ROOT / "docs" / "tutorials").glob("*.ipynb")}
    assert written - set(nav) == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", prose(page))
    assert [one for one in links if not ((ROOT / page).parent / one).exists()] == []


def test_sections_of_a_report_are_listed_with_their_names_and_headings() -> None:
    _, _, text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8").partition("## Sections")
    listed = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE))
    headings: dict[str, set[str]] = {}
    for path in (PACKAGE / "reports" / "sections").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Section":
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                title = given["title"]
                possible = {str(title.value)} if isinstance(title, ast.Constant) else texts
                headings.setdefault(ast.literal_eval(given["id"]), set()).update(possible)
    assert list(listed) == [name for name in listed if name in headings]
    assert headings.keys() - listed.keys() == set()
    assert {name for name, heading in listed.items() if heading not in headings[name]} == set()


def test_example_reports_are_links_in_the_site_alone() -> None:
    """There they exist; a reader of the files would get dead links."""
    named = set()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        named |= set(re.findall(r"\[`examples/([\w-]+)\.html`\]\(examples/\1\.html\)", with_links(text)))
    assert named == {*REPORTS, "compare"}


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_wrapped(page: str) -> None:
    """Tables, indented code and lines that cannot be broken may be longer."""
    long = [
        f"{page}:{number}"
        for number, line in enumerate(prose(page).splitlines(), 1)
        if len(line) > WIDTH and not re.match(r"    |\s*\||!\[|\s*(?:[-*] |\d+\. )?\S+$", line)
    ]
    assert long == []


@pytest.mark.parametrize("page", REWRITTEN)
def test_the_terms_are_those_of_the_field(page: str) -> None:
    text = re.sub(r"(?m)^    .*$", "", prose(page))
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    hits = [
        f"{page}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}: write {instead}"
        for words, instead in WORDING["instead"].items()
        for hit in re.finditer(words, text, re.IGNORECASE)
    ]
    assert hits == []
