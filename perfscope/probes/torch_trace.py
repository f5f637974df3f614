"""torch's own profiler (Kineto), driven at the level that costs least.

`torch.profiler.profile.start()` imports the compiler stack on first use (measured: 1.6 s inside the
training step), and `events()` builds Python objects for every operator (10x a step). Neither is
needed to get the trace: the autograd profiler starts in under a millisecond and Kineto writes its
JSON from C++.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Optional


def profiler_busy() -> bool:
    """True when the training itself is profiling just now."""
    torch = sys.modules["torch"]
    return bool(torch._C._autograd._profiler_enabled())


class TorchTrace:
    """Start, stop and save Kineto; one instance per process."""

    def __init__(self) -> None:
        self._profile: Optional[Any] = None
        torch = sys.modules["torch"]
        fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        self.new_mark = fast if fast is not None else torch.autograd.profiler.record_function

    def start(self) -> bool:
        """Begin a trace of CPU and, where there is one in use, GPU activity.

        Returns:
            False when the training itself holds the profiler.
        """
        if profiler_busy():
            return False
        torch = sys.modules["torch"]
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        profiler = torch.autograd.profiler
        try:
            profile = profiler.profile(use_cpu=True, use_device=device, record_shapes=True, use_kineto=True)
        except TypeError:  # torch < 2.2 names the device by a flag
            profile = profiler.profile(use_cuda=device is not None, record_shapes=True, use_kineto=True)
        profile._prepare_trace()
        profile._start_trace()
        self._profile = profile
        self._describe(torch)
        return True

    @staticmethod
    def _describe(torch: Any) -> None:
        add = getattr(torch.autograd, "_add_metadata_json", None)
        if add is None:
            return
        add("record_shapes", "1")
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            info = {
                "backend": dist.get_backend(),
                "rank": dist.get_rank(),
                "world_size": dist.get_world_size(),
            }
            groups = getattr(dist.distributed_c10d, "_get_all_pg_configs", None)
            if groups is not None:
                info["pg_config"] = groups()
                info["pg_count"] = len(info["pg_config"])
            add("distributedInfo", json.dumps(info))

    def stop(self, path: str) -> None:
        """End the trace and write it to `path` as Chrome JSON."""
        profile, self._profile = self._profile, None
        if profile is None:
            return
        torch = sys.modules["torch"]
        if getattr(profile, "use_device", None) == "cuda" or getattr(profile, "use_cuda", False):
            torch.cuda.synchronize()  # or the last kernels are missing from the trace
        torch.autograd._disable_profiler().save(path)

    def abandon(self) -> None:
        """Switch the profiler off and throw the trace away: the probe is being disabled."""
        profile, self._profile = self._profile, None
        if profile is not None:
            sys.modules["torch"].autograd._disable_profiler()
