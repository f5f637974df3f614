"""Every format that a check can be written in, by the name that the command line knows it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfscope.gate.results import CheckResult
from perfscope.reports.gate.annotations import render_annotations
from perfscope.reports.gate.benchmark_action import render_benchmark_action
from perfscope.reports.gate.bmf import render_bmf
from perfscope.reports.gate.document import render_json
from perfscope.reports.gate.junit import render_junit
from perfscope.reports.gate.markdown import render_markdown
from perfscope.reports.gate.openmetrics import render_openmetrics

FORMATS: Mapping[str, Callable[[CheckResult], str]] = MappingProxyType(
    {
        "json": render_json,
        "markdown": render_markdown,
        "junit": render_junit,
        "annotations": render_annotations,
        "bmf": render_bmf,
        "benchmark-action": render_benchmark_action,
        "openmetrics": render_openmetrics,
    }
)
