"""Parts of the site from the code: options, settings, words, tables, the list of decisions; and examples of docstrings as code."""

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).parent))
import described

#: Lines of an interactive session, to the end of its paragraph.
SESSION = re.compile(r"^>>> .+(?:\n.+)*", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the text of a page, with the generated part of the pages that have one."""
    added = GENERATED.get(page.file.src_uri)
    return f"{markdown}\n\n{added(Path(page.file.abs_src_path))}\n" if added else markdown


def list_decisions(path: Path) -> str:
    """Return a link to each decision next to its index."""
    pages = sorted(path.parent.glob("0*.md"))
    titles = (page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in pages)
    return "\n".join(f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True))


def describe_options(_: Path) -> str:
    """Return the usage, options and help of every command."""
    from slackwater.flows.cli import PROGRAM

    text = PROGRAM.app().generate_docs(heading_level=1)
    return text[text.index("## slackwater ") :]


def describe_settings(_: Path) -> str:
    """Return the settings file with every setting, its meaning and its default."""
    from slackwater.flows.config import commented_settings

    return f"```toml\n{commented_settings()}\n```"


def describe_words(_: Path) -> str:
    """Return the tables of every key and heading of the output."""
    return described.words()


def describe_tables(_: Path) -> str:
    """Return the questions, views and tables of a warehouse."""
    return described.schema()


#: By page, the function that returns its generated part.
GENERATED = {
    "decisions/README.md": list_decisions,
    "options.md": describe_options,
    "schema.md": describe_tables,
    "settings.md": describe_settings,
    "words.md": describe_words,
}


class Sessions(griffe.Extension):
    """Extension of the collector that marks interactive sessions as code; Markdown reads them as quotes."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Put a fence around each session of a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
