"""The generated parts of the README and of two pages with terms, and the figure of the chain.

`python -m flows.documentation.readme` writes them. Numbers are read from result files. A test compares the README with
what this writes.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.documentation.markdown import table, with_part
from flows.documentation.mermaid import THEMES, drawn
from flows.documentation.paper_coverage import origin, runs_that_reproduce
from flows.recipe.shipped import PROJECT
from storage.files import write_atomically
from storage.results.paper_results import printed_numbers
from tasks.report.page.glossary import KINDS, METRICS, TESTS

README = PROJECT / "README.md"
REPORT_PAGE, GLOSSARY = (PROJECT / "docs" / "start" / f"{page}.md" for page in ("report", "glossary"))
LAST = "<!-- end of what make docs writes -->\n"
MEASUREMENTS = PROJECT / "benchmarks" / "results"
STORM = "storm-20.json"
PLAIN_STEP = "plain Hugging Face step"
GIGA = 1e9
SEEDS = PROJECT / "results" / "seeds" / "quickstart.json"
IMAGES = PROJECT / "docs" / "images"
CHAIN = IMAGES / "chain.mmd"
PAPERS = {
    "query_as_context": ("Query-as-context (CoT-MAE, coCondenser)", "cot_mae_query_as_context"),
    "cot_mote": ("CoT-MoTE", "cot_mote"),
    "dup_mae": ("RetroMAE and DupMAE", "dup_mae"),
    "cpdae": ("CPDAE", "cpdae"),
    "came": ("CAME", "came"),
}
"""The title and the recipe of each paper, by its page in `docs/reproduce`."""


def documents() -> dict[Path, str]:
    """Return the content of the README and of its figures, by path."""
    text = README.read_text(encoding="utf-8")
    for name, part in (("highlights", highlights()), ("needs", needs()), ("papers", papers())):
        text = _with_part(text, f"<!-- {name}, written by make docs -->\n", part, README)
    terms = [(REPORT_PAGE, [*METRICS.items(), *TESTS.items()]), (GLOSSARY, list(KINDS.items()))]
    pages = {
        page: _with_part(
            page.read_text(encoding="utf-8"), "<!-- terms, written by make docs -->\n", defined(of_page), page
        )
        for page, of_page in terms
    }
    chain = {
        IMAGES / f"chain-{scheme}.svg": drawn(CHAIN.read_text(encoding="utf-8"), theme)
        for scheme, theme in THEMES.items()
    }
    badges = {IMAGES / f"{name}.svg": badge(name, value) for name, value in _facts().items()}
    return {README: text} | pages | chain | badges


def _with_part(text: str, first: str, part: str, file: Path) -> str:
    return with_part(text, part, (first, LAST), file)


def defined(terms: Sequence[tuple[str, str]]) -> str:
    """Return a table of terms of the reports' glossary; a metric is named with its cutoff k."""
    rows = [(f"{term}@k" if term in METRICS else term, meaning.format(k="k")) for term, meaning in terms]
    return table(("term", "meaning"), rows)


def needs() -> str:
    """Return what an installation and a quickstart need, with the measured memory and disk rounded up."""
    size = _measured("quickstart_size.json")
    memory, disk = (math.ceil(number / GIGA) for number in (size["peak_memory"], sum(size["disk"].values())))
    return (
        "Linux (macOS is untested, Windows through WSL 2), Python 3.11 or 3.12, pip, make and a Python package index. "
        f"Installation and quickstart take {disk} GB of disk with PyTorch's CPU build (its CUDA build, which some "
        f"indexes offer instead, several more) and {memory} GB of free memory "
        "([measured](benchmarks/results/quickstart_size.json)). The small recipes need no Java, GPU, Docker or model "
        "hub. Clone this repository, and in its folder run (a few minutes):\n"
    )


def papers() -> str:
    """Return a table of the papers: page, recipe, and estimated hours at the paper's size."""
    estimated = _measured("recipe_hours.json")
    rows = [
        (
            f"[{title}](docs/reproduce/{page}.md)",
            f"`pretrieve reproduce {recipe}`",
            f"{sum(estimated['hours'][recipe].values()):.0f}",
        )
        for page, (title, recipe) in PAPERS.items()
    ]
    return table(("paper", "command for its main system", f"GPU hours on one {estimated['gpu']}, estimated"), rows)


def badge(name: str, value: str) -> str:
    """Return an SVG with a name and a value."""
    left, right = 7 * len(name) + 14, 7 * len(value) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{name}: {value}">'
        f'<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="#1f5fbf"/>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{name}</text><text x="{left + right / 2}" y="14">{value}</text></g></svg>\n'
    )


def _facts() -> dict[str, str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    label = "Programming Language :: Python :: "
    versions = [line.removeprefix(label) for line in project["classifiers"] if line.startswith(label)]
    return {"python": ", ".join(versions), "licence": project["license"]}


def highlights() -> str:
    """Return what the project offers, each point with a measured number and a link to its measurement."""
    storm = _measured(STORM)
    trained = [number for number in printed_numbers() if origin(number.row)[0] == "trained"]
    covered = sum(1 for number in trained if runs_that_reproduce(number))
    seeds = json.loads(SEEDS.read_text(encoding="utf-8"))["runs"]
    claims = list(zip(*(run["claims"] for run in seeds), strict=True))
    improvements = [by_seed for by_seed in claims if by_seed[0]["expected"] == "better"]
    supported = sum(all(claim["supported"] for claim in by_seed) for by_seed in improvements)
    decisions = len(
        re.findall(r"^\| \d+ \|", (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    points = [
        f"**Five papers, row by row.** {covered} of the {len(trained)} printed numbers of systems that the authors "
        "trained have a recipe ([coverage](docs/coverage.md)); none has been run at the paper's size yet, so none of "
        "these numbers is reproduced.",
        f"**What a paper leaves open is written down**: {decisions} decisions, with sources "
        f"([decisions](docs/fidelity.md)).",
        f"**Runs resume.** {storm['interruptions']} random interruptions, `kill -9` among them: all "
        f"{storm['artifacts_compared']} compared artifacts equal those of uninterrupted runs "
        f"([figures](benchmarks/results/{STORM})).",
        "**Fast on a CPU.** Compared with plain Hugging Face code, a pre-training step has a speedup of "
        f"{_range_of_speedups('pretraining', PLAIN_STEP)}, and generating queries one of {_speedup('generation')}; "
        "some baselines are faster ([speed](docs/speed.md)).",
        "**Comparisons are tests.** Confidence intervals, a paired t-test with Holm's correction, and a randomisation "
        f"test for each ([how to read a report](docs/start/report.md)). {supported} of the quickstart's "
        f"{len(improvements)} claims of an improvement are supported with each of {len(seeds)} seeds "
        f"([figures](results/seeds/{SEEDS.name})).",
    ]
    return "".join(f"- {point}\n" for point in points)


def _speedup(benchmark: str) -> str:
    """Return the median speedup over the fastest baseline in the first case of a benchmark."""
    case = next(iter(_measured(f"{benchmark}.json")["cases"].values()))
    return f"{min(speedup['median'] for speedup in case['times_faster'].values()):.1f}"


def _range_of_speedups(benchmark: str, baseline: str) -> str:
    """Return the lowest and the highest median speedup over a baseline in the cases of a benchmark."""
    cases = _measured(f"{benchmark}.json")["cases"].values()
    medians = [case["times_faster"][baseline]["median"] for case in cases if baseline in case["times_faster"]]
    return f"{min(medians):.1f} to {max(medians):.1f}"


def _measured(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MEASUREMENTS / name).read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    for path, text in documents().items():
        write_atomically(path, text)
        print(path.relative_to(PROJECT))
