"""`make docs` builds the site, and the site requests nothing from another server."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from flows.documentation import notebooks
from flows.documentation.paper_coverage import runs_that_reproduce
from flows.documentation.paper_tables import DECISIONS_PAGE, claims_table, insert_tables, study_claims
from flows.recipe.shipped import PROJECT
from storage.results.paper_results import PAPERS, printed_numbers

REQUESTED = re.compile(r"""(?:<script[^>]*\ssrc|<link[^>]*\shref|<img[^>]*\ssrc|<iframe[^>]*\ssrc)=["']?(https?:)?//""")


@pytest.mark.slow
def test_the_site_has_every_page_and_requests_nothing(tmp_path: Path) -> None:
    """A broken link, an unknown page or a diagram that cannot be drawn fails the build."""
    config = load_config(str(PROJECT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)

    pages = {
        page.relative_to(tmp_path / "site").as_posix(): page.read_text() for page in (tmp_path / "site").rglob("*.html")
    }
    assert {"index.html", "reference/recipe.html", "operate/security.html", "reproduce/came.html"} <= set(pages)
    assert {f"tutorials/{path.stem}.html" for path in notebooks.TUTORIALS.glob("*.ipynb")} <= set(pages)
    assert [name for name, text in pages.items() if REQUESTED.search(text)] == []
    for name, text in pages.items():
        local = re.findall(r'(?:src|srcset)="([^":#?]+)["?#]', text)
        missing = [path for path in local if not (tmp_path / "site" / name).parent.joinpath(path).exists()]
        assert missing == [] or name == "404.html", name  # a server's page for any address, with absolute ones
    assert pages["architecture.html"].count("#only-dark") == 2  # its two diagrams, drawn
    assert "```" not in pages["architecture.html"]


def test_strict_builds_fail_on_what_is_broken() -> None:
    config = load_config(str(PROJECT / "mkdocs.yml"))

    assert config.strict
    assert config.validation.links.not_found == config.validation.links.anchors == 30  # logging.WARNING


def _is_command(line: str, recipe: str) -> bool:
    return line.startswith(f"| `pretrieve reproduce {recipe}` | ")


@pytest.mark.parametrize("paper", PAPERS.values())
def test_a_paper_has_a_page_with_each_table(paper: str) -> None:
    (page,) = [
        file for file in (PROJECT / "docs" / "reproduce").glob("*.md") if f"tables of {paper} -->" in file.read_text()
    ]

    text = insert_tables(page.read_text())

    tables = {number.row.table for number in printed_numbers() if number.row.paper == paper}
    assert {table for table in tables if f"### {table}\n" not in text} == set()
    assert "| hours on one H200 |" in text
    assert "| pre-train |" in text or "| train |" in text
    parts = {part.partition("\n")[0]: part for part in text.split("### ")}
    for number in printed_numbers():
        for run in runs_that_reproduce(number) if number.row.paper == paper else []:
            (line,) = [line for line in parts[number.row.table].splitlines() if _is_command(line, run.recipe)]
            assert number.row.label in line.split(" | ")[1].split("; ")
    claims = [claim for claim in study_claims() if claim.paper == paper]
    assert claims_table(paper, claims) in text
    lines = claims_table(paper, claims).splitlines()[2:]
    assert len(lines) == sum(len(claim.contrasts) for claim in claims) > 0
    for claim in claims:
        for printed in filter(None, claim.printed):
            assert any(f"{abs(printed[0] - printed[1]):.3f} {claim.printed_metric}" in line for line in lines)
    assert "<!--" not in text


def test_each_decision_is_on_the_page_of_its_paper() -> None:
    header, *rows = re.findall(r"^\| (?:#|\d+) \| .*$", DECISIONS_PAGE.read_text(), re.MULTILINE)
    pages = [insert_tables(page.read_text()) for page in (PROJECT / "docs" / "reproduce").glob("*.md")]
    papers = [page for page in pages if f"\n{header}\n" in page]

    assert len(papers) == len(PAPERS)
    numbers = {row.split(" | ")[0] for page in papers for row in re.findall(r"^\| \d+ \| .*$", page, re.MULTILINE)}
    assert numbers == {row.split(" | ")[0] for row in rows}
    assert not any("](#titles-in-spans)" in page for page in papers)  # a section of the page of decisions


def test_a_misspelt_paper_is_refused() -> None:
    with pytest.raises(KeyError, match="expected one of"):
        insert_tables("<!-- tables of CAMEL -->")


def test_a_decision_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError, match="999"):
        insert_tables("<!-- decisions 1, 999 -->")
