"""What bounds the step and what to do about it: findings with figures, from the evidence of a run."""

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.ranking import find

__all__ = ["Evidence", "find"]
