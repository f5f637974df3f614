"""A Markdown page per tutorial notebook, with the outputs that the notebook was saved with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colors of a terminal


class NotebookPage(NamedTuple):
    """Markdown, and the images that it shows by the names it gives them."""

    text: str
    images: dict[str, bytes]


def notebook_page(path: Path) -> NotebookPage:
    """The page of a notebook. Raises ValueError: a cell failed, or has an output that cannot be shown."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    images: dict[str, bytes] = {}
    lines = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += [*_fenced("python", source), ""]
        for output in cell["outputs"]:
            lines += [*_output(output, f"{path.stem}-{number}.png", images), ""]
    download = f'<a href="{path.name}" download>Download this notebook</a>'
    return NotebookPage("\n".join((*lines, download, "")), images)


def _output(output: Mapping[str, Any], image: str, images: dict[str, bytes]) -> Iterator[str]:
    if output["output_type"] == "stream":
        yield from _fenced("text", ESCAPES.sub("", "".join(output["text"])))
        return
    if output["output_type"] == "error":
        raise ValueError(f"a cell failed: {output['evalue']}")
    data = output["data"]
    if "image/png" in data:
        images[image] = base64.b64decode("".join(data["image/png"]))
        yield f"![What the cell draws]({image})"
    elif "text/html" in data:
        # Without the class of pandas' tables the site's own style applies. A blank line would end the HTML.
        table = "".join(data["text/html"]).replace(' border="1" class="dataframe"', "")
        shown = " ".join(re.sub(r"<style.*?</style>", "", table, flags=re.DOTALL).split())
        yield f"<div>{shown}</div>"
    elif "text/plain" in data:
        yield from _fenced("text", "".join(data["text/plain"]))
    else:
        raise ValueError(f"no output of the types {sorted(data)} can be shown")


def _fenced(language: str, text: str) -> list[str]:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}{language}", text.rstrip("\n"), fence]
