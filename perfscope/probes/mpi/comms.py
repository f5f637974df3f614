"""mpi4py's communicators as classes of ours, and whatever they make made anew as one of ours.

`MPI.Comm` and its kin are C classes that take no attributes, so each gets a subclass; `MPI.COMM_WORLD` and
`MPI.COMM_SELF` are replaced by objects of these. `Dup` and `Clone` keep an object's class; `Split`,
`Create_cart` and the like return plain ones, which are made ours again. The classes themselves stay in the
module as they are: C++ code compares with them.
"""

from __future__ import annotations

import copyreg
from typing import Any, Callable, Dict, Optional

from .calls import Timing, _like, wrap
from .groups import Communicator
from .table import CREATE, METHODS

_KINDS = ("Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm", "Topocomm", "Comm")
# Method -> how the new communicator is labeled; cart: with its extents.
_MAKERS = {
    "Dup": "dup", "Clone": "dup", "Dup_with_info": "dup", "Idup": "dup", "Idup_with_info": "dup",
    "Create": "create", "Create_group": "group", "Split": "split", "Split_type": "split", "Shrink": "shrink",
    "Create_cart": "cart", "Create_graph": "graph", "Create_dist_graph": "graph",
    "Create_dist_graph_adjacent": "graph", "Create_intercomm": "inter", "Sub": "sub", "Merge": "merge",
    "Spawn": "spawn", "Spawn_multiple": "spawn", "Accept": "accept", "Connect": "connect",
    "Get_parent": "parent",
}  # fmt: skip
_SHARED_MAKERS = frozenset(("Split", "Create", "Dup", "Clone", "Split_type", "Create_cart", "Sub"))


class Comms:
    """The classes, and what makes a plain communicator one of them.

    Args:
        timing: of this process.
        leaving: called before `Abort` ends the job.
    """

    def __init__(self, timing: Timing, leaving: Callable[[], None]) -> None:
        self._timing = timing
        self._leaving = leaving
        self._mpi = timing.mpi
        self._pickles = "__reduce__" in vars(self._mpi.Comm)  # mpi4py 4 does, 3 does not
        self._classes: Dict[type, Any] = {}
        for name in _KINDS:
            original = getattr(self._mpi, name, None)
            if original is not None:
                self._classes[original] = self._class(original)
        self.world: Any = None
        self._own: Any = None

    def install(self) -> None:
        """Replace COMM_WORLD and COMM_SELF.

        Raises:
            AttributeError: this mpi4py has none.
        """
        mpi, comm_places = self._mpi, self._timing.places
        world, self_comm = (self._constant_as_ours(comm) for comm in (mpi.COMM_WORLD, mpi.COMM_SELF))
        world._perfscope = comm_places.world
        self_comm._perfscope = lambda comm: comm_places.own()
        self.world, self._own = world, self_comm
        if self._pickles:
            copyreg.pickle(mpi.Intracomm, self._reduce_plain)
        mpi.COMM_WORLD, mpi.COMM_SELF = world, self_comm

    def _constant_as_ours(self, comm: Any) -> Any:
        """COMM_WORLD or COMM_SELF as an object of ours, also while MPI may not be called (rc.initialize).

        To make one communicator of another, mpi4py asks MPI what kind it is; MPI ends a program that asks
        before it was initialized. So there the handle itself is copied.
        """
        mpi = self._mpi
        if mpi.Is_initialized() and not mpi.Is_finalized():
            return self.ours(comm)
        import ctypes  # rarely needed, and slow to load

        kind = self._classes.get(type(comm))
        if kind is None:
            return comm
        mine = kind()
        ctypes.memmove(mpi._addressof(mine), mpi._addressof(comm), mpi._sizeof(comm))
        return mine

    def ours(self, comm: Any) -> Any:
        """The same communicator as an object of ours; as it is where we have no class for it."""
        kind = self._classes.get(type(comm))
        return comm if kind is None else kind(comm)

    # -- classes ----------------------------------------------------------------------------------------

    def _class(self, original: Any) -> Any:
        timing = self._timing
        body: Dict[str, Any] = {
            name: wrap(timing, name, method, getattr(original, name))
            for name, method in METHODS.items()
            if hasattr(original, name)
        }
        for name, label in _MAKERS.items():
            if hasattr(original, name):
                body[name] = self._maker(name, label, getattr(original, name))
        body.update(
            Set_name=self._set_name(original),
            Abort=self._abort(original),
            __slots__=("_perfscope",),
            __module__=original.__module__,
            __qualname__=original.__qualname__,
            __doc__=original.__doc__,
        )
        if hasattr(original, "free"):
            body["free"] = self._free(original)
        if self._pickles:
            body["__reduce__"] = self._reduce(original)
        if hasattr(original, "name"):
            body["name"] = property(original.Get_name, body["Set_name"], None, "Print name.")
        return type(original.__name__, (original,), body)

    def _maker(self, name: str, label: str, original: Any) -> Any:
        log, timing = self._timing.log, self._timing

        def call(comm: Any, *args: Any, **kwargs: Any) -> Any:
            if log.active and name in _SHARED_MAKERS:
                made = timing.timed(name, CREATE, original, comm, args, kwargs)
            else:
                made = original(comm, *args, **kwargs)
            return self._named(name, label, comm, made, args, kwargs)

        def parent(cls: type) -> Any:
            return self._named(name, label, self.world, original(), (), {})

        if name == "Get_parent":
            return classmethod(_like(parent, name, original))
        return _like(call, name, original)

    def _named(self, name: str, label: str, comm: Any, made: Any, args: tuple, kwargs: dict) -> Any:
        """What a method made, as ours, with its name; a pair of Idup with its first part so."""
        if isinstance(made, tuple):
            return (self._named(name, label, comm, made[0], args, kwargs), *made[1:])
        timing = self._timing
        try:
            mine = made if type(made) in self._classes.values() else self.ours(made)
            if mine is made and not hasattr(type(mine), "_perfscope"):
                return made
            mine._perfscope = None
            if not made:  # this rank is in none of the new ones, and counts them as the others do
                timing.place_of(comm).count(label)
            elif not timing.off and self._is_usable():
                mine._perfscope = self._place(name, label, comm, mine, args, kwargs)
            return mine
        except Exception as error:  # noqa: BLE001 - the boundary: the program gets what MPI made
            timing.fault(name, error)
            return made

    def _is_usable(self) -> bool:
        return self._mpi.Is_initialized() and not self._mpi.Is_finalized()

    def _place(
        self, name: str, label: str, parent: Any, comm: Any, args: tuple, kwargs: dict
    ) -> Communicator:
        if label == "cart":
            dims = args[0] if args else kwargs.get("dims", ())
            label = "cart(%s)" % "x".join(str(int(extent)) for extent in dims)
        return self._timing.places.child(self._timing.place_of(parent), comm, label)

    # -- what subclasses would change -------------------------------------------------------------------

    def _set_name(self, original: Any) -> Any:
        timing = self._timing

        def call(comm: Any, name: str) -> None:
            original.Set_name(comm, name)
            try:
                comm_place = timing.place_of(comm)
                comm_place.name = str(name) or comm_place.name
            except Exception as error:  # noqa: BLE001 - the boundary
                timing.fault("Set_name", error)

        return _like(call, "Set_name", original.Set_name)

    def _abort(self, original: Any) -> Any:
        leaving = self._leaving

        def call(comm: Any, *args: Any, **kwargs: Any) -> Any:
            leaving()
            return original.Abort(comm, *args, **kwargs)

        return _like(call, "Abort", original.Abort)

    def _free(self, original: Any) -> Any:
        def call(comm: Any) -> None:
            if comm is not self.world and comm is not self._own:  # constants of the module cannot be freed
                original.free(comm)

        return _like(call, "free", original.free)

    def _reduce(self, original: Any) -> Any:
        def call(comm: Any) -> Any:
            return self._constant(comm) or original.__reduce__(comm)

        return _like(call, "__reduce__", original.__reduce__)

    def _constant(self, comm: Any) -> Optional[Any]:
        """How pickle is to write a communicator that is the world or the process itself; None for others."""
        for name, mine in (("COMM_WORLD", self.world), ("COMM_SELF", self._own)):
            if comm is mine:
                return name
            if comm == mine:
                kind = type(comm)
                plain = next((base for base, ours in self._classes.items() if ours is kind), kind)
                return copyreg.__newobj__, (plain, mine)  # type: ignore[attr-defined]
        return None

    def _reduce_plain(self, comm: Any) -> Any:
        # mpi4py would name the constant of its own, which is no longer what the module has under that name.
        return self._constant(comm) or comm.__reduce__()
