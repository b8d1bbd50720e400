"""The parts of the README and of the quickstart's page that show its results.

`python -m flows.documentation.quickstart` writes them, from the kept results of several seeds (`flows.seed_results`)
and from what a run with the first of them printed (`make screenshots`). A test compares the files with these parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.documentation.markdown import table, with_part
from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.files import write_atomically
from tasks.report.page.costs import cpu_range, machines_of_runs
from tasks.report.page.statistics import claim_in_words, probability, signed

README, PAGE = PROJECT / "README.md", PROJECT / "docs" / "start" / "quickstart.md"
RESULTS, OUTPUT = (PROJECT / "results" / "seeds" / f"quickstart.{kind}" for kind in ("json", "txt"))
LAST = "<!-- end of what make results writes -->\n"
FIRST, CLAIMS = ("<!-- " + part + ", written by make results -->\n" for part in ("quickstart", "its claims"))

Content = dict[str, Any]


def documents() -> dict[Path, str]:
    """Return the content of the README and of the quickstart's page, by path."""
    content, output = json.loads(RESULTS.read_text(encoding="utf-8")), OUTPUT.read_text(encoding="utf-8")
    readme, page = (path.read_text(encoding="utf-8") for path in (README, PAGE))
    shown = with_part(readme, brief(content, output), (FIRST, LAST), README)
    return {
        README: with_part(shown, claims_by_seed(content), (CLAIMS, LAST), README),
        PAGE: with_part(page, complete(content, output), (FIRST, LAST), PAGE),
    }


def brief(content: Content, output: str) -> str:
    """Return the printed table of systems."""
    return f"{_block(printed_table(content, output))}\n{_measured_on(content)}\n"


def claims_by_seed(content: Content) -> str:
    """Return a table of the claims: differences by seed, how many seeds support each, and what is not claimed."""
    runs = content["runs"]
    header = [content["metric"], *(f"seed {run['seed']}" for run in runs), "supported", "p_holm"]
    rows = []
    for made in zip(*(run["claims"] for run in runs), strict=True):
        which, p = _refuting(made)
        supported = f"{sum(claim['supported'] for claim in made)} of {len(runs)} seeds"
        differences = (signed(claim["difference"]) for claim in made)
        rows.append([claim_in_words(made[0]), *differences, supported, f"{which} {probability(p)}"])
    return f"{table(header, rows)}\n{_not_claimed(content)}"


def complete(content: Content, output: str) -> str:
    """Return all that a run printed at its end, a table of systems by seeds, the claims and the cost."""
    runs, metric = content["runs"], content["metric"]
    header = ["system", *(f"seed {run['seed']}" for run in runs), "mean"]
    rows = [[f"`{system}`", *_values(runs, system)] for system in runs[0]["values"]]
    return (
        f"{_block(output)}\n## With {len(runs)} seeds\n\n{_measured_on(content)} {metric}:\n\n{table(header, rows)}\n"
        f"{_claims(content)}\n## What it costs\n\n{_cost(runs)}\n"
    )


def printed_table(content: Content, output: str) -> str:
    """Return the lines of a run's output from the header of its table to its last system.

    Raises UserError if the output has another table than the kept results.
    """
    systems, lines = list(content["runs"][0]["values"]), output.splitlines()
    header = next((number for number, line in enumerate(lines) if line.split()[:1] == ["system"]), 0)
    shown = lines[header + 1 : header + 1 + len(systems)]
    if [line.split()[:1] for line in shown] != [[system] for system in systems]:
        raise UserError(f"{OUTPUT}: expected a table of {', '.join(systems)}; `make screenshots` writes it")
    return "\n".join(lines[max(header - 1, 0) : header + 1 + len(systems)])


def _block(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(["```text", *lines, "```", ""])


def _measured_on(content: Content) -> str:
    return f"{content['dataset']}; {content['queries']:,} queries of split {content['split']}."


def _values(runs: Sequence[Mapping[str, Any]], system: str) -> list[str]:
    values = [run["values"][system] for run in runs]
    return [f"{value:.3f}" for value in (*values, sum(values) / len(values))]


def _claims(content: Content) -> str:
    """Return what is claimed, with the number of seeds that support it, and what is not."""
    runs = content["runs"]
    made = "".join(f"{_decisions(number, runs)}\n" for number in range(len(runs[0]["claims"])))
    return (
        "Claimed (paired t-test, Holm's correction over the comparisons of a run, p < 0.05):\n\n"
        f"{made}\n{_not_claimed(content)}"
    )


def _not_claimed(content: Content) -> str:
    return f"Not claimed: {'; '.join(content['not_claimed'])}.\n"


def _decisions(number: int, runs: Sequence[Content]) -> str:
    """Return a claim, the number of seeds that support it, its differences and the p-value nearest to refuting it."""
    claims: list[Mapping[str, Any]] = [run["claims"][number] for run in runs]
    supported = sum(claim["supported"] for claim in claims)
    differences = ", ".join(signed(claim["difference"]) for claim in claims)
    which, p = _refuting(claims)
    proof = "; no proof that both are equal" * (which == "smallest")
    nearest = f"{which} p_holm {probability(p)}{proof}"
    return f"- {claim_in_words(claims[0])}: supported with {supported} of {len(runs)} seeds ({differences}; {nearest})"


def _refuting(claims: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Return the p-value that is nearest to refuting a claim: the largest, or the smallest for "not worse"."""
    which, chosen = ("largest", max) if claims[0]["expected"] == "better" else ("smallest", min)
    return which, chosen(claim["p_holm"] for claim in claims)


def _cost(runs: Sequence[Content]) -> str:
    """Return the CPU time of a complete run, and of the stages that take most of it."""
    longest = sorted(runs[0]["cpu_seconds"].items(), key=lambda kind: -kind[1])[:4]
    stages = ", ".join(f"`{stage}` {seconds:.0f} s" for stage, seconds in longest)
    return (
        f"CPU time of a complete run on {machines_of_runs(runs)}: {cpu_range(runs)} s. The stages that take most, with "
        f"the first seed: {stages}."
    )


if __name__ == "__main__":
    for file, text in documents().items():
        write_atomically(file, text)
        print(file.relative_to(PROJECT))
