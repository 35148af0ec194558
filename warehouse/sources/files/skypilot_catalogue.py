"""SkyPilot catalogues: a CSV of instance types with on-demand and spot prices, without a time of observation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from slackwater.warehouse.amounts import parsed_number
from slackwater.warehouse.catalogue import sellers_of
from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.column_facts import non_spot_columns, plain_name
from slackwater.warehouse.sources.contract import (
    Batch,
    Kind,
    Moment,
    Options,
    Row,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.files.reading import (
    FileSource,
    column_names_text,
    csv_chunks,
    head,
    region_of,
)

_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
#: Columns of ours that a line may state without a name that is known.
_OTHER = ("mode", "product", "unit", "currency")
_OPTIONAL = ("AvailabilityZone", "GpuInfo")
#: Folder names of providers in SkyPilot's catalogue.
_PROVIDERS = frozenset((
    "aws", "azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "hyperstack", "ibm", "jarvislabs", "lambda",
    "lium", "mithril", "nebius", "oci", "ovhcloud", "paperspace", "primeintellect", "runpod", "scaleway", "scp",
    "seeweb", "shadeform", "simplepod", "spheron", "vast", "verda", "yotta",
))  # fmt: skip
#: Folder names that are common words too: they count where the catalogue's own file is, `do/vms.csv`.
_COMMON_WORDS = frozenset(("do",))
_OWN_FILE = "vms.csv"
_DATE = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})(?!\d)")
#: Zone of a row without a zone.
_WHOLE_REGION = "all"
_TOTAL_MEMORY = re.compile(r"'TotalGpuMemoryInMiB': (\d+)")


class SkyPilotCatalogueOptions(Options):
    """Options of catalogues, whose files contain neither provider nor time."""

    provider: str | None = Field(
        None, description="provider of the file (default: from a name such as aws/vms.csv)"
    )
    observed_at: Moment = Field(
        None,
        description="when these prices were true, ISO 8601 (default: `ingest --at TIME`, else a date in the file or folder name)",
    )
    source: str = label_option("skypilot-catalogue")


class SkyPilotCatalogue(FileSource[SkyPilotCatalogueOptions]):
    """Each line is a price row of a Linux instance: ``SpotPrice``, with ``Price`` as on-demand price, in USD per hour.

    The file has no time: it comes from the option, from `ingest --at`, or from a date in a name
    (``2026-07-30/aws/vms.csv``); otherwise the file is refused. A spot price of 0 or none means "not sold as
    spot" and gives a rejected row. A line without a zone gets zone ``all`` of its region. If an instance type
    has lines with several GPU memories (``GpuInfo``), the memory becomes part of its name.

    The catalogue of Google Cloud is refused: it prices a machine in two lines, the host and its
    GPUs, and many of its GPU lines have commitment prices. A line without an instance type, which
    prices GPUs only, is rejected in every catalogue.
    """

    name = "skypilot-catalogue"
    form = SkyPilotCatalogueOptions
    expected = f"a CSV with the columns {', '.join(_COLUMNS)} and perhaps AvailabilityZone"
    examples: Mapping[str, str] = {
        "aws_2026-07-30.csv": "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,"
        "Region,AvailabilityZone\n"
        "p4d.24xlarge,96.0,1152.0,A100,8.0,,21.957642,9.83,us-east-1,us-east-1a\n"
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and columns in the first line."""
        first = head(path).split(b"\n", 1)[0]
        return (
            path.suffix == ".csv"
            and b"InstanceType" in first
            and b"SpotPrice" in first
            and b"Accelerator" in first
        )

    def batches(self, path: Path, options: SkyPilotCatalogueOptions) -> Iterator[Batch]:
        """Return the rows of a catalogue; raises `SourceFileError` for Google Cloud, or without provider or time."""
        provider = options.provider or _provider_in(path)
        if provider == "gcp":
            raise SourceFileError(
                path,
                1,
                "the catalogue of Google Cloud, which prices a machine in two lines, the host and its GPUs",
                expected="prices of whole instances",
                remedy="use the live source gcp-catalogue, or a table of your own with `ingest tabular`",
            )
        constants = {
            "source": options.source,
            "provider": provider,
            "product": "Linux/UNIX",
            "observed_at": options.observed_at or _date_in(path),
            "file": str(path),
        }
        return pack(self._rows(path, constants, is_stated=options.provider is not None), constants)

    def assumed(self, path: Path, options: SkyPilotCatalogueOptions) -> Iterator[str]:
        """Yield a note on the time, which no line states."""
        at = options.observed_at or _date_in(path)
        if at is not None:
            yield f"catalogue taken as true at {at.isoformat()}"

    def _rows(
        self, path: Path, constants: Mapping[str, Any], *, is_stated: bool
    ) -> Iterator[tuple[Kind, Row]]:
        several = self._several_memories(path)
        lacking = {"provider": "--set provider=aws", "observed_at": "--at 2026-07-30T00:00Z"}
        for name, option in lacking.items():
            if constants[name] is None:
                found = f"no {'time' if name == 'observed_at' else name} in the catalogue, nor in its file or folder name"
                raise SourceFileError(path, 1, found, remedy=f"state it: `ingest ... {option}`")
        for line, fields in self._lines(path):
            if isinstance(fields, tuple):
                yield rejection(line, *fields)
                continue
            name = fields["InstanceType"].strip()
            if not name:
                yield rejection(line, ",".join(filter(None, fields.values())), because("record.no_instance"))
                continue
            if not is_stated:
                _check_provider(path, constants["provider"], fields)
            memory = _memory(fields)
            yield (
                "price",
                {
                    "region": fields["Region"],
                    "zone": fields.get("AvailabilityZone", "").strip() or _WHOLE_REGION,
                    "instance_type": f"{name}_{memory}GB" if name in several and memory else name,
                    "price_usd": fields["SpotPrice"],
                    "on_demand_usd": fields["Price"],
                    "line": line,
                    **{ours: text for ours in _OTHER if (text := fields.get(ours))},
                },
            )

    def _lines(self, path: Path) -> Iterator[tuple[int, dict[str, str] | tuple[str, str]]]:
        """Yield (line, fields by name), or (line, (text, reason)) for a line that cannot be parsed."""
        names: dict[str, str] = {}

        def check(header: Sequence[str]) -> None:
            plain = {plain_name(name): name for name in header}
            names.update(
                {
                    column: plain[plain_name(column)]
                    for column in (*_COLUMNS, *_OPTIONAL)
                    if plain_name(column) in plain
                }
            )
            if missing := [column for column in _COLUMNS if column not in names]:
                raise self.wrong(path, 1, f"no column {missing[0]!r} among {column_names_text(header)}")

        for chunk in csv_chunks(path, check_header=check):
            for line, raw, reason in chunk.rejected:
                yield line, (raw, reason)
            if len(chunk):
                columns = {name: chunk.columns[theirs].to_pylist() for name, theirs in names.items()}
                other = non_spot_columns(chunk.columns, names.values())
                columns |= {ours: texts.to_pylist() for ours, texts in other.items()}
                for place, line in enumerate(chunk.lines.to_pylist()):
                    yield line, {name: values[place] for name, values in columns.items()}

    def _several_memories(self, path: Path) -> set[str]:
        """Return the instance types with lines of more than one GPU memory."""
        found: dict[str, set[str]] = {}
        for _, fields in self._lines(path):
            if not isinstance(fields, tuple):
                found.setdefault(fields["InstanceType"].strip(), set()).add(_memory(fields))
        return {name for name, memories in found.items() if len(memories) > 1}


def _provider_in(path: Path) -> str | None:
    """Return the provider named by the catalogue's own folder, a word of the file name or a folder name, nearest first."""
    own = [path.parent.name.lower()] if path.name.lower() == _OWN_FILE else []
    words = (
        *re.split(r"[^a-z0-9]+", path.name.lower()),
        *(part.lower() for part in reversed(path.parts[:-1])),
    )
    found = (word for word in words if word not in _COMMON_WORDS)
    return next((word for word in (*own, *found) if word in _PROVIDERS), None)


def _check_provider(path: Path, provider: str, fields: Mapping[str, str]) -> None:
    """Raise `SourceFileError` if a line has a zone or a type of another provider than the names of file and folder say."""
    place = region_of(fields.get("AvailabilityZone", "").strip())
    sellers = sellers_of(fields["InstanceType"].strip())
    other = place[0] if place else next(iter(sorted(sellers)), provider)
    if other != provider and provider not in sellers:
        where = fields.get("AvailabilityZone") or fields["Region"]
        found = f"{fields['InstanceType']} in {where}, which is no machine of {provider!r}"
        raise SourceFileError(
            path, 1, found, remedy=f"state the provider: `ingest ... --set provider={other}`"
        )


def _date_in(path: Path) -> datetime | None:
    """Return midnight UTC of the date (YYYY-MM-DD) in the nearest name that has a date."""
    for name in (path.name, *reversed(path.parts[:-1])):
        if match := _DATE.search(name):
            try:
                return datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
            except ValueError:
                continue
    return None


def _memory(fields: Mapping[str, Any]) -> str:
    """Return the memory of a single GPU in GB, "" if the line does not state it."""
    total = _TOTAL_MEMORY.search(fields.get("GpuInfo", ""))
    try:
        gpus = parsed_number(fields["AcceleratorCount"])
    except ValueError:
        return ""
    return f"{round(int(total[1]) / 1024 / gpus)}" if total and gpus > 0 else ""
