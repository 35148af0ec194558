"""``schema`` and ``init``: the forms of what is answered and of what may be set. What makes them is loaded when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Answer, Output, option
from flows.show.blocks import Table, Verbatim

#: The deployments as they come with the program; a test compares them with `flows.engine.serving.DEPLOYMENTS`.
DEPLOYMENTS_FILE = Path(__file__).parents[2] / "prefect.yaml"


def schema(
    name: Annotated[str | None, option("Name of the answer (default: list them).", metavar="NAME")] = None,
    /,
    *,
    output: Output = Output(),
) -> Answer:
    """Print the JSON Schema of an answer that programs read: what it says, its types and what they mean."""
    import json

    from flows.schemas import forms

    if name is not None:
        value = forms.schema(name)
        return Answer(title=value["title"], value=value, blocks=[Verbatim(json.dumps(value, indent=2))])
    rows = [{"name": one, "title": forms.schema(one)["title"]} for one in forms.names()]
    return Answer(
        title="Schemas",
        value={"schemas": rows},
        blocks=[Table("Schemas", rows, {"name": "name", "title": "of"})],
    )


def init(
    *,
    out: Annotated[
        Path | None,
        option("Where the file goes (default: slackwater.toml, or prefect.yaml).", metavar="FILE"),
    ] = None,
    deployments: Annotated[
        bool, option("Write prefect.yaml instead: the deployments, for `prefect deploy` into a work pool.")
    ] = False,
    output: Output = Output(),
) -> Answer:
    """Write a settings file in which every setting stands as a comment, with what it means and its default.

    A file that is there is left as it is.
    """
    from flows.config import SETTINGS_FILE, commented_settings
    from warehouse.errors import SettingsError

    if deployments:
        title, path = "Deployments", out or Path(DEPLOYMENTS_FILE.name)
        text = DEPLOYMENTS_FILE.read_text(encoding="utf-8")
        said = f"{path}: the deployments. `prefect deploy --all --no-prompt` makes them known."
    else:
        title, path, text = "Settings", out or Path(SETTINGS_FILE), commented_settings()
        said = f"{path}: every setting as a comment, with its default. It is read where it lies, or with --settings FILE."
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SettingsError(f"{path} is there already", remedy="name another file with --out") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", remedy="name a file that can be written") from error
    return Answer(title=title, value={title.lower(): str(path)}, blocks=[said])
