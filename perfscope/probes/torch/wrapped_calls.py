"""Runs functions and methods of torch's inside marks, while a window is open.

Afterwards a class or module is what it was, entry by entry; an entry that other code has replaced meanwhile
is left alone, and ours inside it then only passes calls on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

from ..frames import around

Inside = Callable[[tuple], None]
TextOf = Callable[[tuple, dict], Optional[str]]  # of a call's arguments: its mark, None for none


class WrappedCalls:
    """Wraps entries of classes and modules, and takes the wraps off.

    Args:
        new_mark: name -> context manager that puts a span into the trace.
        unseen: True while a compiler follows the code: nothing of ours may become part of it.
        failed: called with the first fault; after it no mark is made any more.
    """

    def __init__(
        self,
        new_mark: Callable[[str], Any],
        unseen: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self.new_mark = new_mark
        self.unseen = unseen
        self.broken = False
        self._failed = failed
        self._wrapped: Dict[Tuple[Any, str], Tuple[Any, Any]] = {}  # (owner, name) -> (original, ours)

    @property
    def active(self) -> bool:
        return bool(self._wrapped)

    def wrap(self, owner: Any, name: str, text_of: TextOf, inside: Optional[Inside] = None) -> None:
        """From now on marks calls of `owner.name`, if there is such an entry.

        Args:
            owner: a class or module.
            name: of a method of its own or a function.
            text_of: the mark of a call.
            inside: called with the arguments once the mark is open.
        """
        self.replace(owner, name, lambda original: self._marked(original, text_of, inside))

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts what `make` makes of the entry in its place, if there is one."""
        original = vars(owner).get(name)
        if original is not None:
            ours = make(getattr(owner, name))
            self._wrapped[owner, name] = (original, ours)
            setattr(owner, name, ours)

    def remove(self) -> None:
        """Everything as it was before."""
        wrapped, self._wrapped = self._wrapped, {}
        try:
            for (owner, name), (original, ours) in wrapped.items():
                if vars(owner).get(name) is ours:
                    setattr(owner, name, original)
        except Exception as error:  # noqa: BLE001 - the boundary: what stays wrapped only passes calls on
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """No mark is made any more."""
        if not self.broken:
            self.broken = True
            self.remove()
            self._failed(error)

    def _marked(self, original: Any, text_of: TextOf, inside: Optional[Inside]) -> Any:
        @around(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            mark = self._enter(text_of, args, kwargs) if self._wrapped else None
            if mark is None:
                return original(*args, **kwargs)
            try:
                if inside is not None:
                    inside(args)
                return original(*args, **kwargs)
            finally:
                mark.__exit__(None, None, None)

        return call

    def _enter(self, text_of: TextOf, args: tuple, kwargs: dict) -> Optional[Any]:
        if self.broken or self.unseen():
            return None
        try:
            text = text_of(args, kwargs)
            if text is None:
                return None
            mark = self.new_mark(text)
            mark.__enter__()
            return mark
        except Exception as error:  # noqa: BLE001 - the boundary: the call goes on without its mark
            self.fail(error)
            return None
