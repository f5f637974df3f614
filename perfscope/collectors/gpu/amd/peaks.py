"""Theoretical peaks of AMD GPUs by the driver's or AMD SMI's names, with sources. Dense arithmetic only."""

from __future__ import annotations

from perfscope.collectors.gpu.data_sheets import DataSheet
from perfscope.collectors.peak import NOT_REREAD

_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py (get_peak_flops)"
_MI300X = "https://www.emergentmind.com/topics/amd-mi300x-gpu"
# A device is what the runtime shows: of an MI250X one of its two dies (GCD).
DATA_SHEETS = (
    DataSheet(
        r"(?i:AMD )?(?i:Instinct) MI300X(?: OAM)?",
        (5300.0, _MI300X),
        (448.0, _MI300X),
        (81.7, 163.4, NOT_REREAD),
        {"float64": 163.4, "tf32": 653.7, "float16": 1307.4, "bfloat16": 1307.4, "float8": 2614.9},
        NOT_REREAD,
    ),
    DataSheet(
        r"(?i:AMD )?(?i:Instinct) MI250X(?: OAM)?",
        (1638.4, NOT_REREAD),
        None,
        (23.9, 23.9, NOT_REREAD),
        {"float64": 47.9, "float16": 191.5, "bfloat16": 191.5},
        _TORCHTITAN,
    ),
)
