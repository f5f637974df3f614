"""The `machine` object of the JSON report: everything MachineAnalysis holds, in base units.

hosts, clean, clean_reason, traced_disturbed, start_ns, end_ns, steps_start_ns, steps_end_ns,
joules_per_sample
topologies        host -> topology.json as it stands in the run
windows           [{window, start_ns, end_ns}], Unix ns like every other instant here
disturbances      [{host, kind, start_ns, end_ns, severity, title, evidence, within_steps, windows,
                  step_ns_during, step_ns_otherwise, num_steps_during}]
tracks            [{id, host, group, title, unit, t_ns, mean, low, high, peak, peak_source, quality}];
                  null in `mean` is a gap
ceilings, rooflines, placements, traffic, wire, energy, stacks, costs, stopped, missing
                  lists of objects with the fields of the classes in analysis/machine/results.py
pressures         host -> share of the time in which CPUs were waited for
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from perfscope.analysis.machine.results import MachineAnalysis
from perfscope.messages.missing import missing_document
from perfscope.vocabulary.missing import Missing

Json = dict[str, object]


def machine_document(machine: MachineAnalysis | None) -> Json | None:
    """None where nothing of the machine was recorded."""
    if machine is None:
        return None
    document = {field.name: plain(getattr(machine, field.name)) for field in dataclasses.fields(machine)}
    document["windows"] = [
        {"window": window, "start_ns": start, "end_ns": end} for window, start, end in machine.windows
    ]
    return document


def plain(value: object) -> object:
    """Dataclasses as objects with their fields' names, any mapping as a dict; the rest as it is."""
    if isinstance(value, Missing):
        return missing_document(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
