"""How one option is described."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyclopts import Parameter, validators


def option(
    help: str,
    *,
    name: str | Iterable[str] | None = None,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Parameter:
    """An option or argument: what it is, its name if not the parameter's, what stands for its value, and its bounds."""
    more: dict[str, Any] = {}
    if least is not None or most is not None:
        more["validator"] = validators.Number(gte=least, lte=most)
    return Parameter(name=name, help=help, metavar=metavar, **more)


def shown_default(value: Any) -> str | None:
    """What a help text says of a default: nothing of a flag that is off and of what is simply not given."""
    return None if value is None or value is False or value in ((), [], "") else str(value)
