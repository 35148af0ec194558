"""Parts of the site that its generator lacks: the list of decisions, and examples of docstrings as code."""

import re
from pathlib import Path
from typing import Any

import griffe

#: Lines of an interactive session, to the end of its paragraph.
SESSION = re.compile(r"^>>> .+(?:\n.+)*", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the text of a page; of the decisions, with a link to each below it."""
    if page.file.src_uri != "decisions/README.md":
        return markdown
    pages = sorted(Path(page.file.abs_src_path).parent.glob("0*.md"))
    titles = (path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in pages)
    links = [f"- [{title}]({path.name})" for title, path in zip(titles, pages, strict=True)]
    return "\n".join([markdown, *links])


class Sessions(griffe.Extension):
    """Extension of the collector that marks interactive sessions as code; Markdown reads them as quotes."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Put a fence around each session of a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
