"""Theoretical peaks of NVIDIA GPUs by NVML's names, each with its source. Dense arithmetic only."""

from __future__ import annotations

from perfscope.collectors.gpu.data_sheets import DataSheet
from perfscope.collectors.peak import NOT_REREAD

_H100 = "https://glennklockwood.com/garden/processors/h100"
_A100 = "https://glennklockwood.com/garden/processors/A100"
_B200 = "https://glennklockwood.com/garden/processors/B200"
_A100_PCIE = "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide"
_H100_FORMS = "https://www.server-parts.eu/post/nvidia-h100-pcie-vs-sxm5-gpu-comparison"
_H100_PCIE = "https://io.net/p/faq-what-is-the-difference-between-h100-sxm-and-pcie"
_H100_NVL = "https://www.spheron.network/blog/h100-nvl-vs-sxm5-vs-pcie-form-factor-guide/"
_H200 = "https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py (get_peak_flops)"
_V100_PCIE = "https://www.io-tech.fi/uutinen/nvidia-esitteli-tesla-v100-pci-express-kiihdyttimen-tieteelliseen-laskentaan/"
_V100_MEMORY = "https://m.leiphone.com/category/iot/45VPDfmdFFzqdOxR.html"
_V100_TENSOR = "https://developer.nvidia.com/programming-tensor-cores-cuda-9-0"
_V100_VECTOR = "https://fudzilla.com./news/ai/50832-nvidia-unveils-the-a100-tensor-core-gpu"


def _halves(tera: float) -> dict[str, float]:
    return {"float16": tera, "bfloat16": tera}


_AMPERE = {"float64": 19.5, "tf32": 156.0, **_halves(312.0)}
_HOPPER = {"float64": 66.9, "tf32": 494.7, **_halves(989.4), "float8": 1978.9}
# Order matters: the first that matches.
DATA_SHEETS = (
    DataSheet(
        r"(?:NVIDIA |Tesla )*V100-SXM2-.*",
        (900.0, _V100_MEMORY),
        (150.0, _V100_VECTOR),
        (7.8, 15.7, _V100_VECTOR),
        {"float16": 125.0},
        _V100_TENSOR,
    ),
    DataSheet(
        r"(?:NVIDIA |Tesla )*V100-PCIE-.*",
        (900.0, _V100_PCIE),
        None,
        (7.0, 14.0, _V100_PCIE),
        {"float16": 112.0},
        _V100_PCIE,
    ),
    DataSheet(
        r"(?:NVIDIA )?A100-SXM.*80GB.*",
        (2039.0, _A100),
        (300.0, _A100),
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    DataSheet(
        r"(?:NVIDIA )?A100-SXM.*40GB.*",
        (1555.0, _A100),
        (300.0, _A100),
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    DataSheet(
        r"(?:NVIDIA )?A100[- ](?:80GB[- ]PCIe|PCIE?-80GB).*",
        (1935.0, _A100_PCIE),
        None,
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    DataSheet(
        r"(?:NVIDIA )?A100[- ]PCI[Ee](?:-40GB)?",
        (1555.0, _A100_PCIE),
        None,
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    DataSheet(
        r"(?:NVIDIA )?H100 NVL",
        (3938.0, _H100_NVL),
        (300.0, _H100_FORMS),
        (0.0, 0.0, ""),
        _halves(835.0),
        _TORCHTITAN,
    ),
    DataSheet(
        r"(?:NVIDIA )?H100 PCIe",
        (2000.0, _H100_PCIE),
        None,
        (25.6, 51.0, NOT_REREAD),
        _halves(756.0),
        _TORCHTITAN,
    ),
    DataSheet(
        r"(?:NVIDIA )?H100(?: SXM5)?(?: 80GB HBM3)?",
        (3350.0, _H100),
        (450.0, _H100),
        (33.5, 66.9, _H100),
        _HOPPER,
        _H100,
    ),
    DataSheet(
        r"(?:NVIDIA )?H200",
        (4800.0, _H200),
        (450.0, _H200),
        (33.5, 66.9, _H100),
        _HOPPER,
        _H100,
    ),
    DataSheet(
        r"(?:NVIDIA )?B200",
        (8000.0, _B200),
        (900.0, _B200),
        (40.0, 80.0, _B200),
        {"float64": 40.0, "tf32": 1100.0, **_halves(2250.0), "float8": 4500.0},
        _B200,
    ),
)
