"""``schema``. What makes schemas is loaded when the command is called."""

from __future__ import annotations

from typing import Annotated

from flows.command import Answer, Output, option
from flows.show.blocks import Table, Verbatim


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
