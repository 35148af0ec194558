"""Pool of policies: a parameter grid read from a TOML file (M4.8)."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.optimization.policies import GROUP, POLICIES
from slackwater.optimization.policies.ada_switch import ROBUST
from slackwater.optimization.policies.committed_horizon import END_RULE_NAMES, Commit
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.window.plan import EndRule
from slackwater.warehouse.errors import SettingsError

DEFAULT_POOL = Path(__file__).parents[1] / "data" / "pool.toml"
#: Required parameters in the order of canonical names, by family.
NAMED_PARAMETERS = {
    "AHANP": ("sigma",),
    "AHAP": ("omega", "commitment", "sigma"),
    "AdaSwitch": ("omega", "theta"),
    "RHIG": ("horizon", "sigma"),
    "ROSS": ("seed",),
    "Trust": ("caution",),
    "Window": ("most", "sigma"),
}
#: Parameters that are whole numbers.
WHOLE_PARAMETERS = {"omega", "commitment", "horizon", "most", "seed"}
OPTIONAL_PARAMETERS = {"UP-single": ("changeover_hours",), "Stochastic": ("half_life_hours",)}
#: Optional words after the parameters, by family: the word and the parameter that it sets.
NAMED_WORDS: dict[str, dict[str, dict[str, Any]]] = {
    "AHAP": {word.value: {"commit": word} for word in Commit}
    | {word: {"end_rule": rule} for rule, word in END_RULE_NAMES.items()},
    "AdaSwitch": {word: {"robust": word} for word in ROBUST},
    "Window": {"bind": {"bind": True}},
    "UP-single": {"guard": {"guard": True}},
    "Stochastic": {"guard": {"guard": True}},
}


def load_pool(path: Path = DEFAULT_POOL) -> list[Policy[Any]]:
    """Return the policies of a pool file in file order; raises `SettingsError` for an invalid file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"pool file {path}: {error.strerror}", remedy="name a readable TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"pool file {path}: {error}", expected="valid TOML") from error
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
    made = [_make(family, parameters) for parameters in chosen if not _left_out(parameters)]
    return list({policy.name: policy for policy in made}.values())


#: Family name with optional parameters.
NAME = re.compile(r"([A-Za-z-]+)(?:\(([^()]*)\))?")


def is_policy(name: str) -> bool:
    """Return whether a name belongs to a family of policies, whatever its parameters."""
    match = NAME.fullmatch(name.strip())
    return (match is not None and match.group(1) in POLICIES) or name.strip() in POLICIES


def policy_named(name: str) -> Policy[Any]:
    """Return the policy of a canonical name such as ``UP`` or ``AHAP(5,1,0.9)``; raises `SettingsError` if unknown.

    >>> policy_named("AHAP(5, 1, 0.9)").name
    'AHAP(5,1,0.9)'
    """
    match = NAME.fullmatch(name.strip())
    family = match.group(1) if match else ""
    texts = [text.strip() for text in match.group(2).split(",")] if match and match.group(2) else []
    wanted, known = NAMED_PARAMETERS.get(family, ()), NAMED_WORDS.get(family, {})
    numbers = list(itertools.takewhile(lambda text: text not in known, texts))
    words = texts[len(numbers) :]
    wanted += OPTIONAL_PARAMETERS.get(family, ()) if numbers else ()
    said: dict[str, Any] = {}
    for word in words:
        said |= known.get(word, {})
    if family not in POLICIES and name.strip() in POLICIES:
        return _make(name.strip(), {})
    if family not in POLICIES or len(numbers) != len(wanted) or len(said) != len(words):
        raise SettingsError(
            f"policy {name!r}",
            expected="a name such as OD-only, MSU, UP, AHANP(0.7), AHAP(5,1,0.9) or AHAP(5,3,0.9,last,target), "
            f"an entry point of {GROUP}, or module:Name",
        )
    try:
        parameters = {
            key: int(text) if key in WHOLE_PARAMETERS else float(text)
            for key, text in zip(wanted, numbers, strict=True)
        }
    except ValueError as error:
        raise SettingsError(f"policy {name!r}: {error}", expected="numbers, as in AHAP(5,1,0.9)") from error
    return _make(family, parameters | said)


def _left_out(parameters: Mapping[str, Any]) -> bool:
    """Return whether the commitment is longer than the window, which M4.8 excludes (v <= omega)."""
    return bool({"omega", "commitment"} <= set(parameters) and parameters["commitment"] > parameters["omega"])


def _make(family: str, parameters: dict[str, Any]) -> Policy[Any]:
    for key, words in (("end_rule", EndRule), ("commit", Commit)):
        if key in parameters:
            try:
                parameters = parameters | {key: words(parameters[key])}
            except ValueError as error:
                raise SettingsError(f"{family}: {error}", expected=f"one of {', '.join(words)}") from error
    create = POLICIES[family]
    try:
        policy: Policy[Any] = create(**parameters)
        return policy
    except TypeError as error:
        raise SettingsError(
            f"{family} with parameters {parameters}: {error}", remedy="see pool.toml"
        ) from error
