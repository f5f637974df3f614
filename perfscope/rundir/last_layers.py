"""layers.json of the rank that was read last: that of the next rank mostly has the same bytes."""

from __future__ import annotations

from pathlib import Path

from perfscope.rundir.documents import Document, parse_document
from perfscope.rundir.records import LayersRecord
from perfscope.rundir.typed import decode_record


class LastLayers:
    """Parses a file, and makes its record, only where it differs from the one before."""

    def __init__(self) -> None:
        self._file: tuple[bytes, tuple[Document, bool]] | None = None
        self._model: tuple[Document, LayersRecord] | None = None

    def parsed(self, data: bytes, path: Path) -> tuple[Document, bool]:
        """As `parse_document`; the same object for the same bytes. Raises UnreadableFileError."""
        if self._file is None or self._file[0] != data:
            self._file = data, parse_document(data, path)
        return self._file[1]

    def record(self, document: Document) -> LayersRecord:
        """Of a document that `parsed` gave; the same object for the same document."""
        if self._model is None or self._model[0] is not document:
            self._model = document, decode_record(LayersRecord, document)[0]
        return self._model[1]
