"""AWS spot placement scores from ``GetSpotPlacementScores``: how likely a request for N instances is to be met, 1 to 10."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warehouse.errors import FetchError
from warehouse.live import WHOLE, Asked, Page, PartFailed
from warehouse.source import Batch, Kind
from warehouse.sources.batches import Row, pack, rejection
from warehouse.sources.live.aws_client import AWS_OPTIONS, Aws, AwsAccess
from warehouse.sources.live.given import Given
from warehouse.sources.live.transport import Transport

#: The kind of these rows: a score is no count of instances, and is never read as one.
KIND = "score"
BEST_SCORE = 10
#: AWS: with fewer types in one request the score is always low.
FEWEST_TYPES = 3
_MOST_REGIONS = 10
_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    access: AwsAccess
    regions: tuple[str, ...]
    instance_types: tuple[str, ...]
    target: int
    zones: bool
    label: str


class AwsPlacement:
    """A snapshot: one availability row of kind ``score`` per region, or per zone ID, with capacity 10.

    The types of a request are scored together, so the market's instance type is all of them joined by ``+``. AWS names at
    most the ten best places; one it does not name has no row.
    """

    name = "aws-placement"
    options: Mapping[str, str] = {
        "instance_types": "instance types scored together; AWS wants at least three of different sizes or families",
        "target_capacity": "instances the score is for (default: 1)",
        "regions": "regions to score, at most ten (default: AWS's choice of the best)",
        "zones": "true: score zones (by zone ID) instead of whole regions",
        **AWS_OPTIONS,
    }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used."""
        self._wanted(options)

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the score is a score of."""
        wanted = self._wanted(options)
        words = [f"placement score (1 to 10) for {wanted.target} instances, not a count of instances"]
        if len(wanted.instance_types) < FEWEST_TYPES:
            words.append("placement scores for fewer than three instance types are always low")
        return tuple(words)

    def fetch(self, asked: Asked, transport: Transport) -> Iterator[Page | PartFailed]:
        """Yield the scores of the regions or zones, page by page; raises `FetchError` if AWS refuses."""
        if asked.is_done(WHOLE):
            return
        wanted = self._wanted(asked.options)
        aws = Aws(wanted.access, transport)
        token = asked.token(WHOLE)
        seen = {token}
        while True:
            answer = aws.call(wanted.access.home, "get_spot_placement_scores", **_question(wanted, token))
            token = answer.get("NextToken") or None
            rows = answer.get("SpotPlacementScores") or []
            batches = _batches(rows, wanted, asked, transport)
            yield Page(part=WHOLE, batches=tuple(batches), token=token)
            if token is None:
                return
            if token in seen:
                raise FetchError("EC2 gave the same page token twice", expected="a new one a page")
            seen.add(token)

    def _wanted(self, options: Mapping[str, Any]) -> _Wanted:
        given = Given(self.name, options, self.options)
        types = given.texts("instance_types")
        regions = given.texts("regions")
        if not types:
            raise given.wrong("instance_types", "at least one instance type, better three")
        if len(regions) > _MOST_REGIONS:
            raise given.wrong("regions", f"at most {_MOST_REGIONS} regions")
        return _Wanted(
            access=AwsAccess.of(given),
            regions=regions,
            instance_types=types,
            target=given.whole("target_capacity", 1, low=1, high=2_000_000),
            zones=given.flag("zones"),
            label=given.text("source", self.name),
        )


def _question(wanted: _Wanted, token: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "InstanceTypes": list(wanted.instance_types),
        "TargetCapacity": wanted.target,
        "TargetCapacityUnitType": "units",
        "SingleAvailabilityZone": wanted.zones,
        "MaxResults": _PAGE,
    }
    if wanted.regions:
        asked["RegionNames"] = list(wanted.regions)
    if token is not None:
        asked["NextToken"] = token
    return asked


def _batches(
    scores: Sequence[object], wanted: _Wanted, asked: Asked, transport: Transport
) -> Iterator[Batch]:
    constants = {
        "source": wanted.label,
        "provider": "aws",
        "instance_type": "+".join(wanted.instance_types),
        "observed_at": asked.observed_at(transport.server_date),
        "capacity": BEST_SCORE,
        "gap_seconds": int(asked.every.total_seconds()),
        "kind": KIND,
        "truncated": False,
        "file": wanted.label,
    }
    return pack((_row(line, one) for line, one in enumerate(scores, start=1)), constants)


def _row(line: int, score: object) -> tuple[Kind, Row]:
    if not isinstance(score, Mapping):
        return rejection(line, str(score)[:1000], "not a score")
    return "availability", {
        "region": score.get("Region"),
        "zone": score.get("AvailabilityZoneId") or "all",
        "available": score.get("Score"),
        "line": line,
    }
