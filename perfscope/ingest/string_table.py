"""Names and lanes as small integers, so that a row is numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_LIMIT = 1 << 63


class Words:
    """Numbers for texts. A text met in two categories has two numbers, because its class may differ.

    Attributes:
        texts: number -> text.
        codes: number -> class, as `classify` gave it when the text was first met.
        uses: number -> what `use` said about it.
    """

    def __init__(self, classify: Callable[[str, str], int], use: Callable[[int, str], int]) -> None:
        self.texts: list[str] = []
        self.codes: list[int] = []
        self.uses: list[int] = []
        self._classify = classify
        self._use = use
        self._categories: dict[str, _Numbers] = {}

    def numbers(self, category: str, texts: Sequence[str]) -> list[int]:
        """The number of each text."""
        table = self._categories.get(category)
        if table is None:
            table = self._categories[category] = _Numbers(self, category)
        return [table[text] for text in texts]

    def new(self, category: str, text: str) -> int:
        """Enter a text that is not there yet."""
        code = int(self._classify(category, text))
        self.texts.append(text)
        self.codes.append(code)
        self.uses.append(self._use(code, text))
        return len(self.texts) - 1


class _Numbers(dict[str, int]):
    """text -> number within one category; asking for a new text enters it."""

    def __init__(self, strings: Words, category: str) -> None:
        super().__init__()
        self._words = strings
        self._category = category

    def __missing__(self, text: str) -> int:
        number = self[text] = self._words.new(self._category, text)
        return number


class Lanes:
    """Numbers for threads (device -1) and device streams.

    Attributes:
        keys: number -> (process or device, thread or stream); device lanes have `is_device` True.
    """

    def __init__(self) -> None:
        self.keys: list[tuple[int, int]] = []
        self.is_device: list[bool] = []
        self.labels: dict[int, str] = {}  # lanes that the trace names by text
        self._numbers: dict[tuple[bool, int, int], int] = {}
        self._texts: dict[str, int] = {}

    def numbers(self, device: bool, owners: Sequence[int | str], lanes: Sequence[int | str]) -> Ints:
        """The lane of each (owner, lane) pair; words among them are numbered from -2 downwards."""
        try:
            first, second = np.array(owners, np.int64), np.array(lanes, np.int64)
        except (ValueError, TypeError, OverflowError):
            first, second = self._as_ints(owners), self._as_ints(lanes)
        numbers = np.empty(len(first), np.int64)
        remaining = np.arange(len(first))
        while len(remaining):  # once per lane; there are few
            owner, lane = int(first[remaining[0]]), int(second[remaining[0]])
            same = (first[remaining] == owner) & (second[remaining] == lane)
            numbers[remaining[same]] = self._number(device, owner, lane)
            remaining = remaining[~same]
        return numbers

    def _number(self, device: bool, owner: int, lane: int) -> int:
        key = (device, owner, lane)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append((owner, lane))
            self.is_device.append(device)
            for text, code in self._texts.items():
                if code == lane:
                    self.labels[number] = text
        return number

    def _as_ints(self, values: Sequence[int | str]) -> Ints:
        # A hash may take all 64 bits without a sign: then it is a name, too.
        fits = (isinstance(v, int) and -_LIMIT <= v < _LIMIT for v in values)
        return np.array(
            [v if fit else self._text(str(v)) for v, fit in zip(values, fits, strict=True)], object
        ).astype(np.int64)

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, -2 - len(self._texts))
