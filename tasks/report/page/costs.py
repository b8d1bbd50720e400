"""The cost of a run: time, CPU time, memory and energy by stage, and the machines and software versions.

A stage loaded from the store counts with the cost of building it, so the sums are the cost of the run on an empty
store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Stage = Mapping[str, Any]


def costs(stages: Sequence[Stage]) -> dict[str, Any]:
    """Return sums over all stages, by device and by kind of stage; a value that was not measured is None."""
    return {
        "seconds": _seconds(stages),
        "here": sum(stage["seconds"] for stage in stages if not stage["cached"]),
        **_summed(stages),
        "devices": [
            {"device": name, "seconds": _seconds(of_it), "stages": len(of_it)}
            for name, of_it in _grouped(stages, lambda stage: stage.get("built", {}).get("device")).items()
            if name
        ],
        "kinds": sorted(
            (
                {
                    "stage": name,
                    "times": len(of_it),
                    "seconds": sum(stage["seconds"] for stage in of_it),
                    **_summed(of_it),
                }
                for name, of_it in _grouped(stages, lambda stage: stage["stage"]).items()
            ),
            key=lambda kind: (-kind["seconds"], kind["stage"]),
        ),
    }


def environments(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return each machine with its device, its versions and its number of stages, the largest number first."""
    machines: list[dict[str, Any]] = []
    for stage in stages:
        if built := stage.get("built"):
            here = {**built["machine"], "device": built["device"], "versions": built["versions"]}
            known = next((machine for machine in machines if {**machine, "stages": 0} == {**here, "stages": 0}), None)
            if known is None:
                machines.append(known := {**here, "stages": 0})
            known["stages"] += 1
    return sorted(machines, key=lambda machine: -int(machine["stages"]))


def kept_costs(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a published report's costs: CPU seconds by kind of stage, and the machines."""
    return {
        "cpu_seconds": {kind["stage"]: kind["cpu_seconds"] for kind in report["costs"]["kinds"]},
        "machines": machines(report["environments"]),
    }


def machines(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the machines of a report in words."""
    return [f"{machine['cores']} cores ({machine['device']})" for machine in environments]


def machines_of_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the different machines of runs with kept costs."""
    return " and ".join(dict.fromkeys(name for run in runs for name in run["machines"]))


def cpu_range(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the lowest and the highest CPU seconds of runs with kept costs; one number where both round to it."""
    totals = [sum(run["cpu_seconds"].values()) for run in runs]
    lowest, highest = f"{min(totals):,.0f}", f"{max(totals):,.0f}"
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _seconds(stages: Sequence[Stage]) -> float:
    return float(sum(stage["seconds"] for stage in stages))


def _summed(stages: Sequence[Stage]) -> dict[str, Any]:
    known = [built for stage in stages if (built := stage.get("built"))]
    energies: dict[str, float] = {}
    for built in known:
        for part, joules in (built.get("energy_joules") or {}).items():
            energies[part] = energies.get(part, 0.0) + joules
    return {
        "cpu_seconds": sum(built["cpu_seconds"] for built in known) if known else None,
        "peak_memory_mib": max((built["peak_memory_mib"] for built in known), default=None),
        "energy_joules": energies or None,
    }


def _grouped(stages: Sequence[Stage], by: Any) -> dict[Any, list[Stage]]:
    groups: dict[Any, list[Stage]] = {}
    for stage in stages:
        groups.setdefault(by(stage), []).append(stage)
    return groups
