"""Updates in graphs of tf.compat.v1: which run of a session trains.

There an optimizer only puts operators into the graph; a session runs them later, as often as it is asked to,
and what it is asked to fetch may depend on the update without being it (a group, a moving average behind it).
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterator, Set, Tuple

_Place = Tuple[int, str]  # identity of the graph, name of the operator


class GraphUpdates:
    """Operators that update.

    Attributes:
        known: there are some.
    """

    def __init__(self) -> None:
        self.known = False
        self._updates: Dict[_Place, Set[int]] = {}
        self._reached: Dict[_Place, FrozenSet[int]] = {}

    def add(self, operator: Any, key: int) -> None:
        """`operator` (or the tensor it makes) is an update of the optimizer `key`."""
        operator = getattr(operator, "op", operator)
        self._updates.setdefault(_place(operator), set()).add(key)
        self._reached.clear()
        self.known = True

    def reached_by(self, session: Any, fetches: Any) -> FrozenSet[int]:
        """Optimizers whose updates are run to get what is fetched."""
        reached: FrozenSet[int] = frozenset()
        for fetch in _flat(fetches):
            fetched = session.graph.as_graph_element(fetch) if isinstance(fetch, str) else fetch
            operator = getattr(fetched, "op", fetched)
            if hasattr(operator, "control_inputs"):
                reached |= self._before(operator)
        return reached

    def _before(self, operator: Any) -> FrozenSet[int]:
        key_ = _place(operator)
        if key_ not in self._reached:
            keys: Set[int] = set()
            seen, left = {operator.name}, [operator]
            while left:
                current = left.pop()
                keys |= self._updates.get(_place(current), set())
                for other in (*(tensor.op for tensor in current.inputs), *current.control_inputs):
                    if other.name not in seen:
                        seen.add(other.name)
                        left.append(other)
            self._reached[key_] = frozenset(keys)
        return self._reached[key_]


def _place(operator: Any) -> _Place:
    return id(operator.graph), str(operator.name)


def _flat(fetches: Any) -> Iterator[Any]:
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for fetch in fetches:
            yield from _flat(fetch)
    else:
        yield fetches
