"""`make recording`: a session in a terminal, from a pty, as asciinema's .cast and as an animated SVG.

python docs/_site/recording.py

Nothing is written by hand: the commands run, and what they print is kept with its times. Waits above
MOST_WAIT_S are shortened in both files.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent))

from pictures import IMAGES

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 100, 30
MOST_WAIT_S = 1.5
READING_S = 5.0  # after a command
MOST_FRAMES = 70
ROW, COLUMN = 18, 8.43  # pixels
COMMANDS = (
    "perfscope run -o one --name one -- python train_cnn.py --images 640 --epochs 1",
    "perfscope report one",
    "perfscope run -o two --name two -- "
    "torchrun --standalone --nproc-per-node 2 train_cnn.py --images 640 --epochs 1",
    "perfscope compare one two | head -24",
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07")  # but colors


class Piece(NamedTuple):
    """What was printed, and when since the start."""

    at_s: float
    text: str


def record() -> list[Piece]:
    """Runs COMMANDS one after the other in a terminal."""
    pieces: list[Piece] = []
    now = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(ROOT / "examples" / "train_cnn.py", scratch)
        for command in COMMANDS:
            pieces += [Piece(now, f"\x1b[1;32m$\x1b[0m {command}\r\n")]
            now += 1
            last = time.monotonic()
            for text in _printed(command, scratch):
                arrived = time.monotonic()
                now += min(arrived - last, MOST_WAIT_S)
                last = arrived
                pieces.append(Piece(now, text))
            now += READING_S
    return pieces


def _printed(command: str, folder: str) -> Iterator[str]:
    """What a command prints to a terminal, as it comes. Raises CalledProcessError: it failed."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        **{"COLUMNS": str(WIDTH), "LINES": str(HEIGHT), "TERM": "xterm-256color", "TZ": "UTC"},
        **{"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    }
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    while True:
        ready, _, _ = select.select([ours], [], [], 0.2)
        if ready:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break  # the terminal is closed: the command has ended
            yield data.decode("utf-8", "replace").replace(f"{folder}/", "")
        elif process.poll() is not None:
            break
    os.close(ours)
    if process.wait() not in (0, 141):  # head ends compare
        raise subprocess.CalledProcessError(process.returncode, command)


def cast(pieces: list[Piece]) -> str:
    """An asciinema recording, version 2."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "perfscope run, report, compare"}
    return "\n".join(
        [json.dumps(head), *(json.dumps([round(p.at_s, 3), "o", p.text], ensure_ascii=False) for p in pieces)]
    ) + "\n"  # fmt: skip


def frames(pieces: list[Piece]) -> list[tuple[float, list[str]]]:
    """(time, lines of the screen): at most MOST_FRAMES, evenly over the pieces, and the last one."""
    every = max(1, -(-len(pieces) // MOST_FRAMES))
    found, text = [], ""
    for number, piece in enumerate(pieces):
        text += piece.text
        prompt_next = number + 1 < len(pieces) and pieces[number + 1].text.startswith("\x1b[1;32m$")
        if number % every == 0 or prompt_next or number + 1 == len(pieces):
            lines = [CONTROL.sub("", line.rstrip("\r").split("\r")[-1]) for line in text.split("\n")]
            while lines and not lines[-1]:
                lines.pop()
            found.append((piece.at_s, lines[-HEIGHT:]))
    return found


def animated(pieces: list[Piece]) -> str:
    """An SVG that shows the frames one after the other by CSS; the last one where motion is not wanted."""
    shown = frames(pieces)
    total = shown[-1][0] + READING_S
    width, height = round(WIDTH * COLUMN + 32), HEIGHT * ROW + 52
    style, body = [], []
    for number, (start, lines) in enumerate(shown):
        end = shown[number + 1][0] if number + 1 < len(shown) else total
        a, b = 100 * start / total, 100 * end / total
        last = number + 1 == len(shown)
        style.append(
            f"@keyframes k{number}{{0%{{visibility:{'visible' if a == 0 else 'hidden'}}}"
            f"{a:.3f}%{{visibility:visible}}{b:.3f}%{{visibility:{'visible' if last else 'hidden'}}}}}"
            f"#f{number}{{animation:k{number} {total:.1f}s step-end infinite}}"
        )
        rows = [_row(line, 52 + at * ROW) for at, line in enumerate(lines)]
        body.append(f'<g id="f{number}" class="{"f last" if last else "f"}">{"".join(rows)}</g>')
    reduced = "@media(prefers-reduced-motion:reduce){.f{animation:none!important}.f.last{visibility:visible}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="A terminal: {escape("; then ".join(COMMANDS))}"><style>'
        "text{font:14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d9dbe0;white-space:pre}"
        f".f{{visibility:hidden}}.b{{font-weight:700}}.d{{opacity:.7}}{''.join(style)}{reduced}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#15181d"/>'
        '<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/>'
        f'<circle cx="60" cy="18" r="6" fill="#28c840"/>{"".join(body)}</svg>\n'
    )


def _row(line: str, y: int) -> str:
    """A line of the screen; every run of one style at its own place, so that fonts do not shift it."""
    parsed = Text.from_ansi(line)
    text = parsed.plain[:WIDTH]
    styles = [""] * len(text)
    for span in parsed.spans:
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        for at in range(span.start, min(span.end, len(text))):
            styles[at] = _attributes(style)
    drawn, at = [], 0
    for style_of, group in itertools.groupby(range(len(text)), key=styles.__getitem__):
        length = len(list(group))
        part = text[at : at + length]
        if part.strip():
            drawn.append(
                f'<text x="{16 + at * COLUMN:.1f}" y="{y}" textLength="{length * COLUMN:.1f}"{style_of}>'
                f"{escape(part)}</text>"
            )
        at += length
    return "".join(drawn)


def _attributes(style: Style) -> str:
    """Of a <text>, for a style of a terminal."""
    classes = " ".join(name for name, is_on in (("b", style.bold), ("d", style.dim)) if is_on)
    color = style.color
    fill = (
        f' style="fill:{color.get_truecolor(SVG_EXPORT_THEME).hex}"' if color and not color.is_default else ""
    )
    return (f' class="{classes}"' if classes else "") + fill


def main() -> None:
    """Writes recording.cast and recording.svg; with --draw the SVG alone, of the .cast that is there."""
    if "--draw" in sys.argv:
        lines = (IMAGES / "recording.cast").read_text(encoding="utf-8").splitlines()[1:]
        pieces = [Piece(at_s, text) for at_s, _, text in map(json.loads, lines)]
    else:
        pieces = record()
    (IMAGES / "recording.cast").write_text(cast(pieces), encoding="utf-8")
    (IMAGES / "recording.svg").write_text(animated(pieces), encoding="utf-8")


if __name__ == "__main__":
    main()
