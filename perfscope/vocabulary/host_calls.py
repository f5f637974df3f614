"""Calls of the training thread that are timed as phases by perfscope itself."""

from __future__ import annotations

SOURCE = "call"
# Functions of `os` that return when a file's data is on its device -> phase.
SYNCS = {"fsync": "os.fsync", "fdatasync": "os.fdatasync"}
# Of torch.distributed: collectives and messages of Python objects, which they pickle.
OBJECT_COLLECTIVES = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
# Functions that these call -> phase.
PICKLING = {"_object_to_tensor": "pickle", "_tensor_to_object": "unpickle"}
