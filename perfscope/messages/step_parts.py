"""What the parts of a step are called."""

from __future__ import annotations

TITLES = {
    "compute": "Compute",
    "exposed_comm": "Exposed communication",
    "copy": "Copy",
    "input_wait": "Input wait",
    "optimizer": "Optimizer",
    "idle": "Idle",
    "forward": "Forward",
    "backward": "Backward",
}
