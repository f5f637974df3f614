"""Widths of texts in the font of the PDF: DejaVu Sans, of which `assets/fonts` has the European letters."""

from __future__ import annotations

FONT = "DejaVu Sans"
_BOLD = 1.13  # of the regular letters' width, on average
_OTHER = 0.6  # em: letters that the table lacks
# Advance widths of the characters from space to tilde, in hundredths of an em.
_WIDTHS = (
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63,
    61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97,
    63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59, 52, 64, 34, 64, 84,
)  # fmt: skip


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of `text` set in `size`, in the unit of `size`."""
    ems = sum(_WIDTHS[ord(character) - 32] / 100 if " " <= character <= "~" else _OTHER for character in text)
    return ems * size * (_BOLD if bold else 1.0)
