"""Numbers that people write are read alike everywhere: no digits grouped by underscores, other scripts, bases, inf or nan."""

from decimal import Decimal
from typing import Annotated

import pandas as pd
import pytest
from pydantic import Field, ValidationError

from slackwater.optimization.job.request import parse_request
from slackwater.optimization.policies.pool import policy_named
from slackwater.warehouse.amounts import (
    is_number,
    parsed_decimal,
    parsed_duration,
    parsed_number,
    parsed_whole,
)
from slackwater.warehouse.errors import JobError, SettingsError
from slackwater.warehouse.inputs import InputModel
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.sources.live.contract import NoPrice, price_of
from slackwater.warehouse.store.connection import open_store

STRANGE = ["1_0", "１０", "0x10", "nan", "inf", "1,5", "1 0", "", "ten", "٣", "--1", "1e"]
PLAIN = {"10": 10, " 10 ": 10, "+10": 10, "10.0": 10, "1e1": 10, ".5e1": 5}
JOB = {
    "name": "j",
    "deadline_in": "6h",
    "n_max": 2,
    "workload": {"amount": 2, "unit": "instance_hours"},
    "throughput": {"form": "linear"},
}


class Sizes(InputModel):
    whole: int | None = None
    share: float = 1.0
    rates: tuple[Annotated[float, Field(gt=0)], ...] = ()
    name: str = ""
    either: int | str = 0


@pytest.mark.parametrize("text", STRANGE)
def test_strange_numbers_are_refused_by_every_parser(text):
    assert not is_number(text)
    for parse in (parsed_number, parsed_whole, parsed_decimal, lambda text: price_of(text, "price")):
        with pytest.raises((ValueError, NoPrice)):
            parse(text)
    for field in ("whole", "share"):
        with pytest.raises(ValidationError, match=field):
            Sizes(**{field: text})
    with pytest.raises(ValidationError, match="rates"):
        Sizes(rates=["1.5", text])
    assert Sizes(name=text, either=text).name == text
    with pytest.raises(JobError, match=r"workload\.amount"):
        parse_request(JOB | {"workload": {"amount": text, "unit": "instance_hours"}}, "j.toml")
    with pytest.raises(SettingsError):
        policy_named(f"AHAP(5,1,{text})")


@pytest.mark.parametrize("text", PLAIN)
def test_plain_numbers_are_read(text):
    found = PLAIN[text]
    assert (parsed_number(text), parsed_whole(text), parsed_decimal(text)) == (found, found, Decimal(found))
    assert Sizes(share=text, rates=[text]) == Sizes(share=found, rates=(found,))


def test_a_whole_number_is_not_rounded():
    assert parsed_whole("9007199254740993") == 9007199254740993
    with pytest.raises(ValueError, match=r"2\.6"):
        parsed_whole("2.6")


@pytest.mark.parametrize("text", ["1,5h", "1.5.2h", "1 0h", "1_0h", "１h", "nan", "NaT", "h", "1h30"])
def test_strange_durations_are_refused(text):
    with pytest.raises(ValueError, match="duration"):
        parsed_duration(text)


def test_durations_have_a_unit_and_may_have_several():
    assert parsed_duration("1h 30min") == parsed_duration("1.5h") == pd.Timedelta(minutes=90)


@pytest.mark.parametrize("column", ["spot_price_usd_per_hour", "available", "gap_seconds"])
def test_a_cell_with_a_strange_number_costs_its_row(tmp_path, column):
    names = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,available,gap_seconds"
    cells = {"spot_price_usd_per_hour": "1.5", "available": "3", "gap_seconds": "600"}
    rows = [
        ",".join(["aws", "r", "z", "t", f"2026-03-01T{hour:02}:00Z", *(cells | {column: cell}).values()])
        for hour, cell in enumerate(["10", "1_0", "１０", "0x10", "ten"])
    ]
    (tmp_path / "t.csv").write_text("\n".join([names, *rows]) + "\n")
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", tmp_path / "t.csv", imported_at=pd.Timestamp("2026-03-02", tz="UTC"))
        assert done.rejected == 4
        assert sum(done.reasons.values()) == 4
