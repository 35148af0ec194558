"""Hook of the site: the page of decisions lists every decision."""

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the text of a page; of the decisions, with a link to each below it."""
    if page.file.src_uri != "decisions/README.md":
        return markdown
    pages = sorted(Path(page.file.abs_src_path).parent.glob("0*.md"))
    titles = (path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in pages)
    links = [f"- [{title}]({path.name})" for title, path in zip(titles, pages, strict=True)]
    return "\n".join([markdown, *links])
