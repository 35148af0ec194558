"""Pool of policies: a parameter grid read from a TOML file (M4.8)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.optimization.policies import GROUP, POLICIES, POLICY_NAMES
from slackwater.optimization.policies.contract import NameForm, Policy
from slackwater.warehouse.amounts import parsed_number, parsed_whole
from slackwater.warehouse.documents import read_toml
from slackwater.warehouse.errors import SettingsError

DEFAULT_POOL = Path(__file__).parents[1] / "data" / "pool.toml"


def load_pool(path: Path = DEFAULT_POOL) -> list[Policy[Any]]:
    """Return the policies of a pool file in file order; raises `SettingsError` for an invalid file."""
    table = read_toml(path, "pool file", error=SettingsError)
    families = table.get("family")
    if not isinstance(families, list) or not families or set(table) != {"family"}:
        raise SettingsError(f"pool file {path}: keys {sorted(table)}", expected="[[family]] tables only")
    pool = [policy for grid in families for policy in expand(grid)]
    names = [policy.name for policy in pool]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"pool file {path}: {twice[0]} is listed twice", expected="each policy once")
    return pool


def expand(grid: Mapping[str, Any]) -> list[Policy[Any]]:
    """Return every policy of a family's grid: ``name`` and parameters, each a value or a list of values to cross.

    Grid points that give the same policy (commitments of a single slot bind alike) appear once.

    >>> [policy.name for policy in expand({"name": "AHANP", "sigma": [0.3, 0.7]})]
    ['AHANP(0.3)', 'AHANP(0.7)']
    """
    family = grid.get("name")
    if not isinstance(family, str) or family not in POLICIES:
        raise SettingsError(
            f"pool family {family!r}",
            expected=f"one of {', '.join(POLICIES)}, an entry point of {GROUP}, or module:Name",
        )
    keys = [key for key in grid if key != "name"]
    values = [grid[key] if isinstance(grid[key], list) else [grid[key]] for key in keys]
    chosen = [dict(zip(keys, point, strict=True)) for point in itertools.product(*values)]
    policies = [_make(family, parameters) for parameters in chosen if not _left_out(parameters)]
    return list({policy.name: policy for policy in policies}.values())


#: Family, or ``module:Name``, with optional parameters.
NAME = re.compile(r"\s*([^()\s]+)\s*(?:\(([^()]*)\))?\s*")


def is_policy(name: str) -> bool:
    """Return whether a name belongs to a family of policies, whatever its parameters."""
    match = NAME.fullmatch(name)
    return match is not None and match.group(1) in POLICIES


def policy_named(name: str) -> Policy[Any]:
    """Return the policy of a canonical name such as ``UP`` or ``AHAP(5,1,0.9)``; raises `SettingsError` if unknown.

    >>> policy_named("AHAP(5, 1, 0.9)").name
    'AHAP(5,1,0.9)'
    """
    match = NAME.fullmatch(name)
    family, inside = match.groups() if match else ("", None)
    create = POLICIES.get(family)
    texts = [text.strip() for text in inside.split(",")] if inside else []
    form = _form(create)
    numbers = list(itertools.takewhile(lambda text: text not in form.words, texts))
    words = texts[len(numbers) :]
    wanted = dict(form.numbers) | (dict(form.optional) if numbers else {})
    chosen: dict[str, Any] = {}
    for word in words:
        chosen |= form.words.get(word, {})
    if create is None or len(numbers) != len(wanted) or len(chosen) != len(words):
        raise SettingsError(f"policy {name!r}", expected=POLICY_NAMES)
    try:
        parsers = {int: parsed_whole, float: parsed_number}
        values = {key: parsers[kind](text) for (key, kind), text in zip(wanted.items(), numbers, strict=True)}
    except ValueError as error:
        raise SettingsError(f"policy {name!r}: {error}", expected="numbers, as in AHAP(5,1,0.9)") from error
    return _make(family, values | chosen)


def _form(create: Any) -> NameForm:
    """Return the form of the names of a family, that without parameters for a class that states none."""
    form: NameForm = getattr(create, "name_form", NameForm())
    return form


def _left_out(parameters: Mapping[str, Any]) -> bool:
    """Return whether the commitment is longer than the window, which M4.8 excludes (v <= omega)."""
    return bool({"omega", "commitment"} <= set(parameters) and parameters["commitment"] > parameters["omega"])


def _make(family: str, parameters: Mapping[str, Any]) -> Policy[Any]:
    create = POLICIES[family]
    form = _form(create)
    try:
        policy: Policy[Any] = create(
            **{key: _choice(family, form, key, value) for key, value in parameters.items()}
        )
        return policy
    except TypeError as error:
        raise SettingsError(
            f"{family} with parameters {parameters}: {error}", remedy="see pool.toml"
        ) from error


def _choice(family: str, form: NameForm, key: str, value: Any) -> Any:
    """Return the value that a word of the family's names gives the parameter; other parameters are unchanged."""
    choices = [named[key] for named in form.words.values() if key in named]
    if not isinstance(value, str) or not choices:
        return value
    if value not in choices:
        raise SettingsError(f"{family}: {key} {value!r}", expected=f"one of {', '.join(choices)}")
    return choices[choices.index(value)]
