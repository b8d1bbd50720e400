"""The hooks of `mkdocs.yml` for a build of the site: pages generated from code, and links to files outside `docs/`.

The site and the repository have the same sources. A link from a page in `docs/` to a file of the repository works in
both: the README and a few other files become pages, and any other linked file is copied into the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from flows.documentation import notebooks
from flows.documentation.command_line import command_line_page
from flows.documentation.paper_tables import insert_tables
from flows.documentation.public_names import REFERENCE, undocumented
from flows.documentation.recipe_schema import recipe_page
from flows.documentation.table_schemas import tables_page
from flows.recipe.shipped import PROJECT

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "operate/security.md",
}
"""Pages of the site that are files of the repository's root."""
GENERATED = {
    "reference/command-line.md": command_line_page,
    "reference/recipe.md": recipe_page,
    "reference/tables.md": tables_page,
}
NOTEBOOK = ".ipynb"
LINK = re.compile(r"\[((?:!\[[^\[\]]*\]\([^)]*\)|[^\[\]])*)\]\((?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")
"""A relative link: its text, which may be an image, its path and its anchor."""
PICTURE = re.compile(r'((?:src|srcset)=")docs/')
"""A figure in the README's HTML."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated or outside `docs/`; fail on a public name without documentation."""
    if problems := undocumented((Path(config["docs_dir"]) / REFERENCE).read_text(encoding="utf-8")):
        raise PluginError(f"{REFERENCE}: {'; '.join(problems)}")
    for source, target in ROOT_PAGES.items():
        files.append(File.generated(config, target, content=(PROJECT / source).read_text(encoding="utf-8")))
    for target, page in GENERATED.items():
        files.append(File.generated(config, target, content=page()))
    for notebook in notebooks.TUTORIALS.glob(f"*{NOTEBOOK}"):
        target = notebook.with_suffix(".md").relative_to(PROJECT / config["docs_dir"]).as_posix()
        files.append(File.generated(config, target, content=notebooks.page(notebooks.read(notebook))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with the papers' tables, and with links that lead to where the site has their targets."""
    source = next((name for name, target in ROOT_PAGES.items() if target == page.file.src_uri), None)
    folder = PurePosixPath() if source else PurePosixPath("docs", page.file.src_uri).parent
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1

    def of_the_site(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        text = LINK.sub(of_the_site, text)
        target = _normalised(folder / path)
        if (PROJECT / target).is_dir():  # a browser cannot list a folder
            return text
        location = _site_path(target, config, files)
        return f"[{text}]({'../' * depth}{location}{anchor or ''})" if location else link.group(0)

    markdown = LINK.sub(of_the_site, insert_tables(markdown))
    return PICTURE.sub(r"\1", markdown) if source else markdown


def _normalised(path: PurePosixPath) -> str:
    """Return a path without `..`, relative to the repository."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _site_path(target: str, config: MkDocsConfig, files: Files) -> str | None:
    """Return where the site has a file of the repository, copied there if need be; None if missing."""
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        return f"{inside.removesuffix(NOTEBOOK)}.md" if inside.endswith(NOTEBOOK) else inside
    path = PROJECT / target
    if not path.is_file():
        return None  # MkDocs reports the link
    name = f"files/{target}" if path.suffix != ".md" else f"files/{target}.txt"  # no page, so no Markdown
    if files.get_file_from_path(name) is None:
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return name
