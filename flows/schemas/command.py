"""The commands ``schema`` and ``init``: JSON Schemas of the answers, and a settings file with defaults."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, Output, option
from slackwater.flows.show.blocks import Table, Verbatim
from slackwater.flows.show.formats import join_words

#: Deployments and automations shipped with the program, which `slackwater.flows.engine.serving` serves.
DEPLOYMENTS_FILE = Path(__file__).parents[2] / "prefect.yaml"
AUTOMATIONS_FILE = DEPLOYMENTS_FILE.with_name("automations.yaml")
EXAMPLES = DEPLOYMENTS_FILE.with_name("examples")
#: Example files shipped with the program by option of `init`: path, name of the copy, and the line that is printed.
TEMPLATES = {
    "job": (
        EXAMPLES / "job.toml",
        "job.toml",
        "a job file with every key. Change it, then `slackwater plan {}`.",
    ),
    "request": (
        EXAMPLES / "requests" / "all-fields.toml",
        "request.toml",
        "a fine-tuning request with every key; `model`, `samples` and `deadline_in` suffice. Change it, then "
        "`slackwater fill {}`.",
    ),
    "types": (
        EXAMPLES / "types.toml",
        "types.toml",
        "four types of jobs that share a budget. Change them, then `slackwater rent {} --budget GPUS`.",
    ),
}


def schema(
    name: Annotated[str | None, option("Name of the answer (default: list them).", metavar="NAME")] = None,
    /,
    *,
    output: Output = Output(),
) -> Answer:
    """Print the JSON Schema of a command's JSON answer: its keys, their types and meanings."""
    import json

    from slackwater.flows.schemas import forms

    if name is not None:
        value = forms.schema(name)
        return Answer(title=value["title"], value=value, blocks=[Verbatim(json.dumps(value, indent=2))])
    rows = [{"name": form_name, "title": forms.schema(form_name)["title"]} for form_name in forms.names()]
    return Answer(
        title="Schemas",
        value={"schemas": rows},
        blocks=[Table("Schemas", rows, {"name": "name", "title": "of"})],
    )


def init(
    *,
    out: Annotated[
        Path | None, option("File to write (default: the name that the option states).", metavar="FILE")
    ] = None,
    job: Annotated[bool, option("Write job.toml instead, a job file with every key.")] = False,
    request: Annotated[
        bool, option("Write request.toml instead, a request for `slackwater fill` with every key.")
    ] = False,
    types: Annotated[bool, option("Write types.toml instead, types of jobs for `slackwater rent`.")] = False,
    deployments: Annotated[
        bool,
        option(
            "Write prefect.yaml instead, the deployments for `prefect deploy` into a work pool, and automations.yaml next to it."
        ),
    ] = False,
    output: Output = Output(),
) -> Answer:
    """Write a file to start from: slackwater.toml with each setting as a comment, or an example of another file.

    Existing files are not overwritten.
    """
    from slackwater.flows.config import SETTINGS_FILE, commented_settings
    from slackwater.warehouse.errors import SettingsError

    given = {"job": job, "request": request, "types": types, "deployments": deployments}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise SettingsError(join_words([f"--{name}" for name in chosen]), remedy="give one of them")
    if chosen and chosen[0] in TEMPLATES:
        template, usual, line = TEMPLATES[chosen[0]]
        path = out or Path(usual)
        texts, value = {path: template.read_text(encoding="utf-8")}, {chosen[0]: str(path)}
        lines = [f"{path}: {line.format(shlex.quote(str(path)))}"]
    elif deployments:
        path = out or Path(DEPLOYMENTS_FILE.name)
        automations_path = path.with_name(AUTOMATIONS_FILE.name)
        texts = {
            path: DEPLOYMENTS_FILE.read_text(encoding="utf-8"),
            automations_path: AUTOMATIONS_FILE.read_text(encoding="utf-8"),
        }
        value = {"deployments": str(path), "automations": str(automations_path)}
        lines = [
            f"{path}: the deployments. `prefect deploy --all --no-prompt` creates them; then "
            "`python -m slackwater.flows.engine.closing` lets them refuse unknown parameters.",
            f"{automations_path}: automations that end runs whose process has died, and run their turn again. "
            f"`prefect automation create --from-file {automations_path}` creates them.",
        ]
    else:
        path = out or Path(SETTINGS_FILE)
        texts, value = {path: commented_settings()}, {"settings": str(path)}
        lines = [
            f"{path}: every setting as a comment, with its default. It is read where it lies, or with --settings FILE."
        ]
    for name in texts:
        if name.exists():
            raise SettingsError(f"{name} exists already", remedy="name another file with --out")
    for name, text in texts.items():
        try:
            with name.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise SettingsError(
                f"{name}: {error.strerror}", remedy="name a file that can be written"
            ) from error
    return Answer(title="Files", value=value, blocks=lines)
