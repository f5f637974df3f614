"""What mkdocs adds to the files in docs/: pages of commands and notebooks, and documents of the root."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from command_pages import command_pages
from example_reports import example_reports, with_links
from notebook_pages import notebook_page

ROOT = Path(__file__).parents[2]
ROOT_DOCUMENTS = {
    name: f"{name.lower()}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for name, text in command_pages().items():
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    for name, page in ROOT_DOCUMENTS.items():
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    files.append(
        File.generated(config, "action.yml", content=(ROOT / "action.yml").read_text(encoding="utf-8"))
    )
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        text, images = notebook_page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, content in images.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    for name, page in example_reports().items():
        files.append(File.generated(config, f"examples/{name}", content=page))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to files of the root lead to their copies in the site, links to notebooks to their pages."""
    markdown = with_links(markdown).replace(".ipynb)", ".md)")
    markdown = markdown.replace("](../action.yml", "](action.yml")
    for name, page in ROOT_DOCUMENTS.items():
        markdown = markdown.replace(f"](../{name}.md", f"]({page}").replace(f"]({name}.md", f"]({page}")
    return markdown
