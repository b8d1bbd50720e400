"""Keep the results of a recipe's runs with several seeds, and write the README's part about them.

`python -m flows.seed_results REPORT...` writes `results/seeds/RECIPE.json` from published `report.json` files that
differ in their seeds only, and then the README. Without reports it writes the README from the kept file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.documentation.markdown import with_part
from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import without_seeds
from tasks.report.page.costs import cpu_range, kept_costs, machines_of_runs
from tasks.report.page.statistics import claim_in_words, headline_rows, probability, signed

README, FOLDER = PROJECT / "README.md", PROJECT / "results" / "seeds"
SHOWN = FOLDER / "quickstart.json"
"""The results that the README shows."""
FIRST, LAST = "<!-- written from results/seeds/quickstart.json -->\n", "<!-- end of the quickstart's results -->\n"

Content = dict[str, Any]


def kept(reports: Sequence[Content]) -> Content:
    """Return what is kept of the reports of one recipe, in the order of their seeds.

    Raises UserError if the reports are not of one recipe with different seeds.
    """
    recipes = [yaml.safe_load(report["recipe"]["text"]) for report in reports]
    seeds = [recipe.pop("seed") for recipe in recipes]
    if any(without_seeds(recipe) != without_seeds(recipes[0]) for recipe in recipes) or len({*seeds}) < len(seeds):
        raise UserError("reports: expected those of one recipe with different seeds; their recipes differ in more")
    first, metric = reports[0], reports[0]["headline"]["metric"]
    rows = headline_rows(first["rows"])
    return {
        "recipe": first["recipe"]["recipe"], "title": first["recipe"]["title"], "dataset": first["recipe"]["dataset"],
        "metric": metric, "split": rows[0]["split"], "queries": max(row["queries"] for row in rows),
        "not_claimed": first["claims"]["not_made"],
        "runs": [_run(seed, report, metric) for seed, report in sorted(zip(seeds, reports, strict=True), key=_seed)],
    }  # fmt: skip


def part(content: Content) -> str:
    """Return the Markdown of kept results: a table of systems by seeds, the claims, and the cost."""
    runs, metric = content["runs"], content["metric"]
    seeds = [str(run["seed"]) for run in runs]
    lines = [
        f"{content['dataset']}; {content['queries']:,} queries of split {content['split']}. {metric} by seed:", "",
        f"| system | {' | '.join(seeds)} | mean |", f"|---|{'---|' * (len(runs) + 1)}",
        *(_line(system, [run["values"][system] for run in runs]) for system in runs[0]["values"]), "",
        "Claimed (paired t-test, Holm's correction over the comparisons of a run, p < 0.05):", "",
        *(_decisions(number, runs) for number in range(len(runs[0]["claims"]))), "",
        f"Not claimed: {'; '.join(content['not_claimed'])}.", "",
        _cost(runs), "",
    ]  # fmt: skip
    return "\n".join(lines)


def readme(text: str, content: Content) -> str:
    """Return the README's text with the kept results between its two marks."""
    return with_part(text, f"\n{part(content)}\n", (FIRST, LAST), README)


def _seed(numbered: tuple[int, Content]) -> int:
    return numbered[0]


def _run(seed: int, report: Content, metric: str) -> Content:
    of_metric = [row for row in report["comparisons"] if row["metric"] == metric]
    return {
        "seed": seed, "report": report["inputs"]["report"], "metrics": report["inputs"]["metrics"],
        "values": {row["run"]: row["value"] for row in headline_rows(report["rows"]) if row["metric"] == metric},
        "comparisons": of_metric, "claims": report["claims"]["made"],
        **kept_costs(report),
    }  # fmt: skip


def _line(system: str, values: Sequence[float]) -> str:
    return f"| `{system}` | {' | '.join(f'{value:.3f}' for value in (*values, sum(values) / len(values)))} |"


def _decisions(number: int, runs: Sequence[Content]) -> str:
    """Return a claim with the number of seeds that support it, its differences and the p-value nearest to refuting it.

    For "better" that is the largest; for "not worse", which a small p-value refutes, the smallest.
    """
    claims: list[Mapping[str, Any]] = [run["claims"][number] for run in runs]
    supported = sum(claim["supported"] for claim in claims)
    differences = ", ".join(signed(claim["difference"]) for claim in claims)
    p_values = [claim["p_holm"] for claim in claims]
    if claims[0]["expected"] == "better":
        nearest = f"largest p_holm {probability(max(p_values))}"
    else:
        nearest = f"smallest p_holm {probability(min(p_values))}; no proof that both are equal"
    return f"- {claim_in_words(claims[0])}: supported with {supported} of {len(runs)} seeds ({differences}; {nearest})"


def _cost(runs: Sequence[Content]) -> str:
    """Return the CPU time of a complete run, and of the stages that take most of it."""
    longest = sorted(runs[0]["cpu_seconds"].items(), key=lambda kind: -kind[1])[:4]
    stages = ", ".join(f"`{stage}` {seconds:.0f} s" for stage, seconds in longest)
    return (
        f"CPU time of a complete run on {machines_of_runs(runs)}: {cpu_range(runs)} s. The stages that take most, with "
        f"the first seed: {stages}."
    )


def main(paths: Sequence[str]) -> None:
    """Write the kept results of the reports, if there are any, and the README."""
    if paths:
        content = kept([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths])
        write_atomically(FOLDER / f"{content['recipe']}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_atomically(README, readme(README.read_text(encoding="utf-8"), json.loads(SHOWN.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main(sys.argv[1:])
