"""The options that commands share, how one is described, and what they open: warehouse, settings, logical time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, dataclass_transform

from cyclopts import Parameter, validators

from flows.command.progress import say

if TYPE_CHECKING:
    import pandas as pd

    from flows.config import Settings
    from warehouse.store.connection import Store


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


T = TypeVar("T")
DEFAULT_DB: Final = Path("slackwater.duckdb")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def shared(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are options of every command that takes one."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))


@shared
class Output:
    """How the answer is given."""

    json: Annotated[bool, option("Print one JSON object instead of tables.")] = False
    html: Annotated[Path | None, option("Write the answer as a page, too.", metavar="FILE")] = None


@shared
class Warehouse:
    """Which warehouse is meant, and the settings."""

    db: Annotated[Path, option("The warehouse: a DuckDB file, made if it is not there.", metavar="FILE")] = (
        Path("slackwater.duckdb")
    )
    settings: Annotated[
        Path | None, option("Settings file (default: slackwater.toml if there).", metavar="FILE")
    ] = None

    @property
    def config(self) -> Settings:
        """The settings; raises `SettingsError` where the file cannot be used."""
        from flows.config import read_settings

        return read_settings(self.settings)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """The warehouse to read, without waiting for its writer; raises `StoreError` where there is none."""
        from warehouse.store.connection import open_reader

        with open_reader(self.db) as store:
            yield store

    @contextmanager
    def writing(self) -> Iterator[Store]:
        """The warehouse to write, made if it is not there; others wait meanwhile."""
        from warehouse.store.connection import open_store

        with open_store(self.db, say=say) as store:
            yield store


@shared
class Query(Output, Warehouse):
    """What a command takes that looks into the warehouse."""


@shared
class QueryAt(Query):
    """The same as of a time."""

    at: Annotated[
        str | None, option("Logical time, ISO 8601 (UTC unless it says otherwise).", metavar="TIME")
    ] = None

    @property
    def time(self) -> pd.Timestamp | None:
        """``--at``, None if it is not given; raises `SettingsError` for what is no time."""
        return parsed_time(self.at, "--at")

    def moment(self, store: Store) -> tuple[pd.Timestamp, bool]:
        """The time of a command and whether every market is taken at its own end: ``--at``, else the end of the record.

        Raises `MarketError` on a warehouse without observations.
        """
        import pandas as pd

        from warehouse.errors import MarketError
        from warehouse.observations import list_markets

        if self.time is not None:
            return self.time, False
        listing = list_markets(store)
        if listing.empty:
            raise MarketError(
                "the warehouse has no observations",
                remedy="`slackwater run` or `slackwater ingest` brings some",
            )
        return pd.Timestamp(listing["last_observed"].max()), True


@shared
class Session(QueryAt):
    """The same on the warehouse or on a folder of tables."""

    data: Annotated[
        Path | None, option("Folder with prices and availability tables to read.", metavar="DIR")
    ] = None

    @contextmanager
    def market_data(self, *, write: bool = False) -> Iterator[Store]:
        """The warehouse, to read unless ``write``; with ``--data`` one of its own that holds that folder and is thrown away."""
        if self.data is None:
            with self.writing() if write else self.reading() as store:
                yield store
            return
        with folder_store(self.data) as store:
            yield store


@contextmanager
def folder_store(data: Path) -> Iterator[Store]:
    """A warehouse of the tables of a folder, thrown away at the end."""
    from tempfile import TemporaryDirectory

    import pandas as pd

    from warehouse.observations import ingest
    from warehouse.store.connection import open_store

    with (
        TemporaryDirectory(prefix="slackwater-") as folder,
        open_store(Path(folder) / "data.duckdb") as store,
    ):
        say(f"read {data}")
        # The logical time of an import does not matter where nothing is kept.
        epoch = pd.Timestamp(0, tz="UTC")
        ingest(store, "tabular", data, known_at=None, imported_at=epoch)
        yield store


def parsed_time(text: str | None, name: str) -> pd.Timestamp | None:
    """The time an option gives, None for none; raises `SettingsError` naming the option ``name``."""
    from flows.clock import parse_time

    return parse_time(text, name) if text else None


def parsed_duration(text: str, name: str) -> pd.Timedelta:
    """A duration such as 10min, 1h or 7d; raises `SettingsError` naming the option ``name``."""
    import pandas as pd

    from warehouse.errors import SettingsError

    try:
        width = pd.Timedelta(text.strip().removesuffix("d") + "D" if text.strip().endswith("d") else text)
    except ValueError as error:
        raise SettingsError(f"{name} {text}", expected="a duration such as 10min, 1h or 7d") from error
    if not width > pd.Timedelta(0):  # NaT is not
        raise SettingsError(f"{name} {text}", expected="a positive duration such as 1h")
    return width


MarketName = Annotated[
    str | None,
    option("provider/region/zone/instance_type, optionally @source.", name="--market", metavar="MARKET"),
]
