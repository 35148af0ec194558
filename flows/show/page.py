"""What every page shares: the environment its template is rendered in, and writing it whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warehouse.errors import InputError


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """The template ``flows/templates/<name>`` with ``values``; every value is escaped but what passes the filter ``drawing``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("flows", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup  # the drawings are our own markup, escaped where they were made
    return environment.get_template(name).render(**values)


def write_html(content: str, path: Path, *, option: str) -> Path:
    """Write a page so that a reader sees the old one or the new one, never half of one; returns ``path``.

    Folders are made. Raises `InputError` if the file cannot be written; ``option`` is the one that names another path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(content)
            os.chmod(temporary, 0o644)  # mkstemp's own mode would hide the page from a web server
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(
            f"report {path}: {error.strerror}",
            expected="a writable file",
            remedy=f"choose another path with {option}",
        ) from error
    return path
