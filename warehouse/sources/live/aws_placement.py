"""AWS placement scores through boto3, from ``GetSpotPlacementScores``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, field_validator

from slackwater.warehouse.columns import SCORE, because
from slackwater.warehouse.sources.contract import Kind, Row, Texts, label_option, pack, rejection
from slackwater.warehouse.sources.live.aws import CREDENTIALS, AwsAccess, AwsClients
from slackwater.warehouse.sources.live.contract import (
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
    next_page,
)
from slackwater.warehouse.sources.live.transport import Transport

BEST_SCORE = 10
#: AWS: for fewer types per request the score is always low.
FEWEST_TYPES = 3
_MOST_REGIONS = 10
_PAGE = 100


class AwsPlacementOptions(AwsAccess):
    """Options of the placement scores."""

    instance_types: Texts = Field(
        (),
        validate_default=True,
        description="instance types scored together; AWS wants at least three of different sizes or families",
    )
    target_capacity: int = Field(1, ge=1, le=2_000_000, description="instances the score is for (default: 1)")
    regions: Texts = Field(
        (), description="regions to score, at most ten (default: AWS's choice of the best)"
    )
    zones: bool = Field(False, description="true: score zones (by zone ID) instead of whole regions")
    source: str = label_option("aws-placement")

    @field_validator("instance_types")
    @classmethod
    def _some(cls, types: tuple[str, ...]) -> tuple[str, ...]:
        if not types:
            raise ValueError("at least one instance type, better three")
        return types

    @field_validator("regions")
    @classmethod
    def _few(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        if len(regions) > _MOST_REGIONS:
            raise ValueError(f"at most {_MOST_REGIONS} regions")
        return regions

    def question(self, token: str | None) -> dict[str, Any]:
        """Return the parameters of a request for the page of ``token``, None for the first."""
        parameters: dict[str, Any] = {
            "InstanceTypes": list(self.instance_types),
            "TargetCapacity": self.target_capacity,
            "TargetCapacityUnitType": "units",
            "SingleAvailabilityZone": self.zones,
            "MaxResults": _PAGE,
        }
        if self.regions:
            parameters["RegionNames"] = list(self.regions)
        return parameters | ({} if token is None else {"NextToken": token})


class AwsPlacement(LiveSource[AwsPlacementOptions]):
    """A snapshot: an availability row of kind ``score`` per region, or per zone ID, with capacity 10.

    The types of a request are scored together, so the market's instance type is their names joined
    by ``+``. AWS lists at most the ten best places; a place that is not listed has no row.
    """

    name = "aws-placement"
    form = AwsPlacementOptions
    example = Example(
        options={"instance_types": ["p3.2xlarge", "g4dn.xlarge", "g5.xlarge"]},
        answer='<GetSpotPlacementScoresResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r-1</requestId>'
        "<spotPlacementScoreSet><item><region>us-east-1</region><score>7</score></item></spotPlacementScoreSet>"
        "<nextToken/></GetSpotPlacementScoresResponse>",
        credentials=CREDENTIALS,
    )

    def assumed(self, options: AwsPlacementOptions) -> tuple[str, ...]:
        """Return notes on the meaning of the score."""
        words = f"placement score (1 to 10) for {options.target_capacity} instances, not a count of instances"
        if len(options.instance_types) >= FEWEST_TYPES:
            return (words,)
        return words, "placement scores for fewer than three instance types are always low"

    def pages(
        self, options: AwsPlacementOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield the scores of the regions or zones, page by page; raises `FetchError` if AWS refuses."""
        if request.is_done(WHOLE):
            return
        aws = AwsClients(options, transport)
        token = request.token(WHOLE)
        seen: set[str | None] = {token}
        while True:
            answer = aws.call(options.home_region, "get_spot_placement_scores", **options.question(token))
            token = answer.get("NextToken") or None
            constants = {
                "source": options.source,
                "provider": "aws",
                "instance_type": "+".join(options.instance_types),
                "observed_at": request.observed_at(transport.server_date),
                "capacity": BEST_SCORE,
                "gap_seconds": int(request.every.total_seconds()),
                "kind": SCORE,
                "truncated": False,
                "file": options.source,
            }
            rows = enumerate(answer.get("SpotPlacementScores") or [], start=1)
            batches = pack((_row(line, score) for line, score in rows), constants)
            yield FetchedPage(part=WHOLE, batches=tuple(batches), token=token)
            if next_page(token, seen, "EC2") is None:
                return


def _row(line: int, score: object) -> tuple[Kind, Row]:
    if not isinstance(score, Mapping):
        return rejection(line, str(score)[:1000], because("record.not_score"))
    return "availability", {
        "region": score.get("Region"),
        "zone": score.get("AvailabilityZoneId") or "all",
        "available": score.get("Score"),
        "line": line,
    }
