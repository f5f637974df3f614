"""Names of the layers of all models of a process, unambiguous among them.

The layers of a single model have bare names (`features.3.conv`). With a second model each name begins with
its model's: the attributes of the module that owns it (`agent.actor.2`), else its class
(`discriminator.main.0`), numbered where that is taken. What had bare names until then is listed as renamed.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .layers import LayerMarks, class_name, describe, field, qualified_names, unwrap, wraps
from .models import MAX_MODELS

_MAX_DEPTH = 8  # of owners


class _Model:
    """What is kept of a model, also when it is gone."""

    def __init__(self, root: Any) -> None:
        inner = unwrap(root)
        names = qualified_names(root)
        self.root = weakref.ref(root)
        self.kind = class_name(inner)
        self.label: Optional[str] = None  # None: its layers have bare names
        self.modules = [weakref.ref(module) for _, module in names]
        self.rows = describe(names)
        self.bare = [name for name, _ in names]

    def names(self) -> List[str]:
        """Of its modules, in their order; the first is the model itself."""
        if self.label is None:
            return self.bare
        return [self.label] + ["%s.%s" % (self.label, name) for name in self.bare[1:]]


class ModelNames:
    """Names models, and tells `marks` the names of their layers."""

    def __init__(self, marks: LayerMarks) -> None:
        self._marks = marks
        self._models: List[_Model] = []
        self._renamed: Dict[str, str] = {}

    def name(self, roots: Sequence[Any]) -> Dict[str, Any]:
        """Take in the models of which these are the outermost modules.

        Returns:
            layers.json of all models so far, those that are gone as well.
        """
        replaced = [
            entry for entry in self._models if (entry.root() is not None and not _among(entry.root(), roots))
        ]
        self._models = [
            entry for entry in self._models if entry not in replaced
        ]  # a wrapper was found around them
        for root in roots:
            if len(self._models) < MAX_MODELS and not any(entry.root() is root for entry in self._models):
                self._models.append(_Model(root))
        if len(self._models) > 1:
            self._label()
        for model in self._models:
            for name, module in zip(model.names(), model.modules):  # noqa: B905 - Python 3.8
                self._marks.give(module, name)
        return self._document()

    def _label(self) -> None:
        if all(model.label is not None for model in self._models):
            return  # finding owners looks at every object there is
        owners = _owners()
        taken = {entry.label for entry in self._models} | {
            name for entry in self._models for name in entry.bare
        }
        for model in self._models:
            if model.label is None:
                wanted = label = _path(model.root(), owners) or model.kind.lower()
                number = 1
                while label in taken:
                    number += 1
                    label = "%s_%d" % (wanted, number)
                taken.add(label)
                model.label = label
                if model is self._models[0]:
                    self._renamed = dict(zip(model.bare, model.names()))  # noqa: B905 - Python 3.8

    def _document(self) -> Dict[str, Any]:
        rows = [
            dict(row, layer=name)
            for model in self._models
            for name, row in zip(model.names(), model.rows)  # noqa: B905 - Python 3.8
        ]
        document: Dict[str, Any] = {"root": self._models[0].kind if self._models else "", "layers": rows}
        if len(self._models) > 1:
            document["models"] = [{"name": entry.label, "type": entry.kind} for entry in self._models]
            document["renamed"] = self._renamed
        return document


def _among(module: Any, modules: Sequence[Any]) -> bool:
    return any(module is other for other in modules)


def _owners() -> Dict[int, Tuple[Any, str]]:
    """id of a module -> the module whose attribute it is, and that attribute's name.

    Looks through all objects of the process once: some ten milliseconds.
    """
    kind = sys.modules["torch"].nn.Module
    owners: Dict[int, Tuple[Any, str]] = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), kind):
            for name, child in list(field(candidate, "_modules").items()):
                if child is not None:
                    owners.setdefault(id(child), (candidate, name))
    return owners


def _path(module: Optional[Any], owners: Dict[int, Tuple[Any, str]]) -> str:
    """`agent.actor`: class and attributes of what owns `module`; "": nothing does."""
    names: List[str] = []
    for _ in range(_MAX_DEPTH):
        owner = owners.get(id(module))
        if owner is None or module is None:
            break
        module, name = owner
        if not wraps(module, name):
            names.insert(0, name)
    return ".".join([class_name(unwrap(module)).lower(), *names]) if names else ""
