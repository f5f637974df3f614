"""Sentences of findings from their facts."""

from __future__ import annotations

import pytest

from perfscope.messages.findings.facts import PartOfStep
from perfscope.messages.findings.step import ComputeBound, ComputeKinds
from perfscope.messages.findings.texts import Subject
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.kernels import KernelType


@pytest.mark.parametrize(
    ("of_device", "on_matrix_units", "bytes_ratio", "begins"),
    [
        (True, 0.1, 0.2, "Use tensor cores"),
        (True, 0.9, 0.5, "Fuse elementwise operators"),
        (True, 0.9, 0.1, "Look at the"),
        (True, None, 0.1, "Look at the"),
        (False, None, 0.6, "Look at the"),  # a host's operators: no kernel to fuse is known
    ],
)
def test_computation_is_advised_by_what_its_kernels_do(
    of_device: bool, on_matrix_units: float | None, bytes_ratio: float, begins: str
) -> None:
    kinds = ComputeKinds(
        of_device=of_device,
        shares=((KernelType.GEMM, 0.6), (KernelType.ELEMENTWISE, 0.4)),
        bytes_ratio=bytes_ratio,
        matrix_ratio=0.6,
        on_matrix_units=on_matrix_units,
    )
    part = PartOfStep(part_ns=90.0, step_ns=100.0, has_step_marks=True)
    facts = ComputeBound(compute=part, framework="torch", kinds=kinds)
    text = facts.text(Subject(kind=FindingKind.COMPUTE_BOUND))
    assert text.action.startswith(begins)
    assert "GEMM 60 % and elementwise 40 %" in text.detail
