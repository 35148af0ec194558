"""Optional extras of the package: which modules each brings, and the error if they are needed and not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from slackwater.warehouse.errors import SettingsError

#: Extras of ``pip install "slackwater[NAME]"``, with the modules that the program imports from them.
EXTRAS: Final = {
    "aws": ("boto3",),
    "dask": ("distributed",),
    "serve": ("prefect", "uvicorn", "starlette", "prometheus_client"),
}


def has_extra(extra: str) -> bool:
    """Return whether the modules of an extra are installed; nothing is imported."""
    return not _missing_modules(extra)


def require_extra(extra: str, user: str) -> None:
    """Raise `SettingsError` unless the modules of an extra are installed; ``user`` names what needs them."""
    if missing := _missing_modules(extra):
        raise SettingsError(
            f"{user} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            expected=f"the optional extra {extra}",
            remedy=f'pip install "slackwater[{extra}]"',
        )


def _missing_modules(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if find_spec(name) is None]
