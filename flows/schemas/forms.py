"""Types of the JSON answers of the commands, and their JSON Schemas.

Each answer is a `TypedDict` of plain values, from which pydantic makes the schema. Times are ISO
8601 in UTC, money is USD, unknown and undefined values are null. Keys may be added: readers must
ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from slackwater.flows.ledger.fields import (
    BOARD,
    DECISION,
    DELIVERED,
    NOT_NEGATIVE,
    OUTCOME,
    SHARE,
    Count,
    Field,
    Keys,
    Time,
    read_fields,
    row_type,
)
from slackwater.warehouse.errors import InputError

Share = Annotated[float, Keys(**SHARE)]
#: Each item is a sentence.
Sentences = list[str]
Variable = Literal["price", "count"]


class _Rows:
    """Type of a row whose fields are declared in another module; pydantic asks for their schema only when needed."""

    def __init__(self, fields: Callable[[], Mapping[str, Field]]) -> None:
        self.fields = fields

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Return the JSON Schema of a row."""
        return schema_of(row_type(self.fields()))


DecisionRow = Annotated[
    dict[str, Any], _Rows(lambda: {name: one for name, one in DECISION.items() if name not in DELIVERED})
]
#: Decision of `slackwater fill`: the fields computed from job and decision, so without the reason
#: for the policy.
FilledDecision = Annotated[
    dict[str, Any], _Rows(lambda: {name: one for name, one in DECISION.items() if one.value is not None})
]
BoardRow = Annotated[dict[str, Any], _Rows(lambda: BOARD)]


#: Keys of forecast errors, in the answers of turns and of the command ``accuracy`` (M6.5).
MEASURES: Final = read_fields("measure")


def _measures(names: str, **own: str) -> _Rows:
    """Return the type of a row of errors with these keys; ``own`` are the words of keys that mean something else there."""
    return _Rows(
        lambda: {
            name: replace(MEASURES[name], words=own.get(name, MEASURES[name].words)) for name in names.split()
        }
    )


_SKILL = "skill_low skill_high days verdict"
_ERRORS = (
    "variable model step n mae rmse mase pinball skill_pinball skill_mae coverage_50 coverage_80 coverage_90 brier "
    "fallback_share width_50 width_80 width_90 skill_brier absent unpredicted cover coverage_50_closed coverage_80_closed "
    "coverage_90_closed"
)
_SPREAD = "mean_skill_pinball median_skill_pinball worst_skill_pinball share_worse markets"
#: Errors of a model on a market at a lead time, as measured in a turn (M6.5).
TurnError = Annotated[
    dict[str, Any],
    _measures(
        "market source variable model step n mae rmse mase pinball skill_mae skill_pinball coverage_80 brier "
        "fallback_share scale"
    ),
]
#: Errors of a model at a lead time over the stored forecasts of the last 14 days, pooled over markets.
RecentError = Annotated[
    dict[str, Any],
    _measures(
        f"{_SKILL} variable model step n mae mae_last skill_pinball",
        skill_pinball="Reduction of the pinball loss compared with last value, as a share; null with fewer than 3 days.",
    ),
]
#: Errors on a market, with the Diebold-Mariano test against last value.
MarketMeasures = Annotated[
    dict[str, Any],
    _measures(
        f"{_ERRORS} {_SKILL} class market source dm dm_p scale capacity",
        market="provider/region/zone/instance_type@source.",
    ),
]
#: Errors pooled over all markets, and the spread of the pinball skills of the single markets.
PooledMeasures = Annotated[dict[str, Any], _measures(f"{_ERRORS} {_SKILL} {_SPREAD}")]
#: Errors pooled over the markets of a class.
ClassMeasures = Annotated[dict[str, Any], _measures(f"{_ERRORS} {_SKILL} {_SPREAD} class")]
#: Model for the markets of a left-out zone (or source), selected on the earlier halves of the others of their class.
LeftOutChoice = Annotated[
    dict[str, Any],
    _measures(
        "class variable left_out markets others model skill", markets="Number of its markets in this class."
    ),
]
#: Skill on the later halves of a class of the models selected elsewhere, the default and the best model in hindsight.
LeftOutMeasures = Annotated[
    dict[str, Any],
    _measures(
        "class variable choice model step n markets skill_pinball mean_skill_pinball median_skill_pinball skill_low skill_high "
        "blocks verdict ahead ahead_low ahead_high worst_skill_pinball worst_market worst_low worst_high share_worse "
        "coverage_50 coverage_80 coverage_90 mae",
        model="The model, or the selected models.",
        skill_low="Lower end of the 95 % interval of the pooled skill, zones (or sources) as blocks; null with fewer than 3.",
    ),
]


class Ingested(TypedDict):
    """Number of rows read from a source."""

    added: Count
    repeated: Count
    rejected: Count


class TurnAnswer(TypedDict):
    """Results of a turn of the loop: ``slackwater run --json``."""

    at: Annotated[Time, Keys(description="Logical time of the turn.")]
    run: Annotated[str, Keys(description="Name of the turn, determined by its logical time.")]
    ingested: Annotated[dict[str, Ingested], Keys(description="Numbers of rows by source.")]
    accuracy: list[TurnError]
    forecast_errors: list[RecentError]
    decisions: Annotated[
        list[DecisionRow], Keys(description="Decisions for the next slot of every running job.")
    ]
    leaderboard: Annotated[
        list[BoardRow], Keys(description="Policies, best first; empty before the first job has ended.")
    ]
    movers: NotRequired[
        Annotated[
            list[BoardRow],
            Keys(description="Multi-market policies, best first; present once a multi-market job has ended."),
        ]
    ]
    notes: Sentences
    report: Annotated[str, Keys(description="Path of the HTML report.")]


#: Forecast of a variable for a slot: mean and quantiles.
SlotQuantiles = Annotated[
    dict[str, Any],
    _Rows(
        lambda: {
            "step_ahead": Field(kind=int, words="Lead time in slots; 1 is the next slot."),
            "slot": Field(kind=datetime, words=""),
            "mean": Field(kind=float, words=""),
            **{f"q{level:02d}": Field(kind=float, words="") for level in range(5, 100, 5)},
        }
    ),
]


class ForecastRow(TypedDict):
    """Forecast of a market by a model."""

    market: str
    source: str
    model: str
    issued_at: Annotated[datetime, Keys(description="Slot in which the forecast was issued.")]
    newest_row: Annotated[datetime, Keys(description="Slot of the newest value available to the forecast.")]
    step_minutes: float
    fallback: Annotated[
        str,
        Keys(description="Reason why a simpler model made the forecast; empty if the model itself made it."),
    ]
    price: Annotated[list[SlotQuantiles], Keys(description="USD per instance-hour, slot by slot.")]
    count: Annotated[
        list[SlotQuantiles],
        Keys(description="Available instances, slot by slot; empty if availability was not observed."),
    ]


class ForecastAnswer(TypedDict):
    """Forecasts of price and count: ``slackwater forecast --json``."""

    forecasts: list[ForecastRow]


class InstancesOfSlot(TypedDict):
    """Instances run in a slot, with the observed price and availability of the market; null in gaps."""

    slot: datetime
    on_demand: Count
    spot: Count
    price_usd: float | None
    available: int | None


Valued = Annotated[float | None, Keys(description="USD; null for a job without a value.")]


class Bracket(TypedDict):
    """Bounds of the optimal utility in hindsight in the slot model, and the cost of the lower bound, USD."""

    low: Valued
    high: Valued
    cost_usd: float


_From = TypedDict("_From", {"from": datetime})


OnTime = Annotated[
    bool | None, Keys(description="Null if spot was run while its availability was not observed.")
]


GpusEach = Annotated[
    int | None,
    Keys(description="GPUs per instance; null if unknown, or if the markets of a multi-market job differ."),
]
Work = Annotated[
    str, Keys(description="Total work as text, in the unit of the job and in instance-hours or GPU-hours.")
]
Model = Annotated[Literal["slot", "world"], Keys(description=OUTCOME["model"].words)]


class ReplayedPolicy(_From):
    """Simulated outcome of a policy for a job on the recorded data of its markets.

    ``markets``, ``moves`` and ``moving_usd`` are there for multi-market jobs; ``market`` is the
    home market, or the first market of the job.
    """

    job: str
    market: str
    source: str
    policy: str
    forecaster: str
    model: Model
    deadline: datetime
    deadline_slots: int
    gpus_per_instance: GpusEach
    work: Work
    cost_usd: float
    value_usd: Valued
    utility_usd: Valued
    utility: Annotated[
        float | None,
        Keys(description="Utility in units of the cost with on-demand only; null for a job without a value."),
    ]
    finish: Annotated[datetime | None, Keys(description="Null if the job was abandoned.")]
    finish_slots: float | None
    on_time: OnTime
    spot_share: Share
    on_demand_only_usd: Annotated[float | None, Keys(description="Null if no on-demand price is known.")]
    saved_usd: Annotated[
        float | None,
        Keys(
            description="Saving compared with on-demand only; negative if the job costs more. An abandoned job, without a "
            "finish, saves the cost of the work not done."
        ),
    ]
    saved_share: Annotated[float | None, Keys(description="Saving as a share of on_demand_only_usd.")]
    hindsight: Bracket
    gap_to_hindsight: float
    must_finish: bool
    gaps: Annotated[int, Keys(**NOT_NEGATIVE, description="Slots without observations.")]
    synthetic: Sentences
    markets: NotRequired[list[str]]
    moves: NotRequired[Count]
    moving_usd: NotRequired[float]


class ReplayedSlot(InstancesOfSlot):
    """Instances of a job in a slot, for a multi-market job with their market; null without instances."""

    market: NotRequired[str | None]


class ReplayedSlots(ReplayedPolicy):
    """Simulated outcome of a policy, slot by slot."""

    allocations: list[ReplayedSlot]


#: Version 2: figures that depend on the job's value are null for a job without a value. Version 1
#: used an imputed value.
REPLAY: Final = "slackwater.replay/2"


class _Replay(TypedDict):
    schema: Literal["slackwater.replay/2"]


class ReplayAnswer(_Replay, ReplayedSlots):
    """A single policy: ``slackwater replay --json``."""


class ReplaysAnswer(_Replay):
    """All policies, best first: ``slackwater replay --policy all --json``."""

    replays: list[ReplayedPolicy]


BACKTEST: Final = "slackwater.backtest/1"


class BacktestPolicy(TypedDict):
    """A policy over all starts of a backtest."""

    policy: str
    starts: Count
    mean_cost_usd: float
    worst_cost_usd: float
    worst_start: datetime
    late: Annotated[
        int | None,
        Keys(
            **NOT_NEGATIVE,
            description="Starts that missed the deadline; null if spot was run while its availability was not observed.",
        ),
    ]
    given_up: Annotated[int, Keys(**NOT_NEGATIVE, description="Late starts whose job was abandoned.")]
    saved_usd: Annotated[
        float | None, Keys(description="Mean saving compared with on-demand only, over the finished jobs.")
    ]
    saved_share: Annotated[
        float | None, Keys(description="Mean saving as a share of the cost with on-demand only.")
    ]
    saved_low: Annotated[
        float | None,
        Keys(
            description="Lower end of the 95 % interval of saved_share over blocks of starts; null if unknown."
        ),
    ]
    saved_high: Annotated[float | None, Keys(description="Upper end of the 95 % interval of saved_share.")]
    mean_utility_usd: Annotated[
        float | None, Keys(description="Mean value less cost; null for a job without a value.")
    ]
    spot_share: Share


class BacktestRun(TypedDict):
    """A policy at a start of a backtest."""

    start: datetime
    policy: str
    cost_usd: float
    on_time: OnTime
    finish: Annotated[datetime | None, Keys(description="Null if the job was abandoned.")]
    spot_share: Share
    on_demand_only_usd: Annotated[float | None, Keys(description="Null if no on-demand price is known.")]
    hindsight_usd: Annotated[float, Keys(description="Cost of the hindsight optimum in the slot model.")]
    utility_usd: Annotated[float | None, Keys(description="Value less cost; null for a job without a value.")]


class BacktestAnswer(_From):
    """A job simulated at many starts: ``slackwater backtest --json``."""

    schema: Literal["slackwater.backtest/1"]
    job: str
    gpus_per_instance: GpusEach
    work: Work
    markets: list[str]
    source: str
    model: Model
    forecaster: str
    to: datetime
    every_minutes: float
    step_minutes: float
    deadline_slots: int
    starts: Count
    left_out: Annotated[
        int,
        Keys(
            **NOT_NEGATIVE, description="Starts left out because the record does not cover all their slots."
        ),
    ]
    gaps: Annotated[int, Keys(**NOT_NEGATIVE, description="Slots without observations, over all starts.")]
    blocks: Annotated[int, Keys(**NOT_NEGATIVE, description="Blocks of starts behind the intervals.")]
    leader: Annotated[str, Keys(description="Policy that a turn would use now.")]
    on_demand_only_usd: Annotated[float | None, Keys(description="Null if no on-demand price is known.")]
    hindsight_usd: float
    policies: list[BacktestPolicy]
    runs: list[BacktestRun]
    synthetic: Sentences


class LeftOutAnswer(TypedDict):
    """Model selection with zones (or sources) left out: ``--leave-out``."""

    by: Literal["zone", "source"]
    choices: list[LeftOutChoice]
    classes: list[LeftOutMeasures]


class AccuracyAnswer(TypedDict):
    """Accuracy of forecasts compared with last value: ``slackwater accuracy --json``. The notes explain the columns."""

    data: Annotated[str, Keys(description="Folder or warehouse of the data.")]
    step_minutes: int
    models: list[str]
    pooled: list[PooledMeasures]
    markets: list[MarketMeasures]
    classes: list[ClassMeasures]
    default: str
    notes: Sentences
    left_out: NotRequired[LeftOutAnswer]


_States = TypedDict(
    "_States",
    {"done": Count, "fallback": Count, "stale": Count, "missing": Count, "failed": Count, "not due": Count},
)


class StageStates(_States):
    """Number of slots of a market and stage in each state."""

    market: str
    source: str
    stage: str
    complete: Annotated[
        float | None, Keys(description="Share of the due slots that are done; null if none was due.")
    ]


class Stretch(TypedDict):
    """Consecutive slots in the same state."""

    market: str
    source: str
    stage: str
    state: str
    since: datetime
    until: Annotated[datetime, Keys(description="Start of the last slot.")]
    slots: int
    reason: str | None


class Freshness(TypedDict):
    """Age of the newest observation, and the time at which the next is expected (M1.3)."""

    market: str
    source: str
    kind: Variable
    newest: datetime | None
    age_minutes: float | None
    every_minutes: float | None
    expected_by: datetime | None
    late_by_minutes: float | None
    max_age_minutes: float | None
    stale: bool


class FeedFreshness(TypedDict):
    """Last fetch of a live feed."""

    feed: str
    fetched: datetime | None
    status: str
    failing: Annotated[int, Keys(description="Number of consecutive incomplete fetches.")]
    failing_since: datetime | None
    added: int
    rejected: int
    reason: str
    every_minutes: float | None
    expected_by: datetime | None
    late_by_minutes: float | None


class AlarmRow(TypedDict):
    """Active alarm."""

    kind: str
    subject: str
    severity: str
    since: datetime | None
    raised_at: datetime | None
    text: str


class _Schema(TypedDict):
    schema: Literal["slackwater.status/1"]


class StatusAnswer(_Schema):
    """Done, missing, failed and stale slots: ``slackwater status --json``."""

    at: datetime
    note: Annotated[str, Keys(description="Reason for the choice of the time; empty if it was given.")]
    unreadable: Annotated[Sentences, Keys(description="Stored rows left out because they cannot be read.")]
    contradicted: Annotated[Sentences, Keys(description="Sources that contradict each other about a market.")]
    exit_code: Literal[0, 3, 4, 5]
    since: datetime
    until: datetime
    step_minutes: float
    completeness: list[StageStates]
    not_done: list[Stretch]
    doubtful: list[Stretch]
    freshness: list[Freshness]
    feeds: list[FeedFreshness]
    alarms: list[AlarmRow]


class Rate(TypedDict):
    """Tokens per second: the median and the ends of the 90 % interval."""

    median: float
    low: float
    high: float


class Configuration(TypedDict):
    """GPUs, batch size and market of a fine-tuning job."""

    model: str
    method: str
    tokens_per_sample: int
    gpu_model: str
    number_gpus: int
    gpus_per_instance: int
    n_min: int
    n_max: int
    batch_size: int
    torch_dtype: str | None
    market: str
    source: str
    on_demand_usd_per_hour: Annotated[float | None, Keys(description="Null if no on-demand price is known.")]
    on_demand_from: Annotated[str, Keys(description="Origin of the on-demand price.")]
    spot_usd_per_hour: float | None


class Verdict(TypedDict):
    """Prediction whether a configuration fits into the memory of its GPUs."""

    instances: int
    p_valid: float
    decided_by: str
    memory_gb: float | None
    limit_gb: float | None
    reason: str


class Validity(TypedDict):
    """Verdicts for the smallest and the largest number of instances, where known."""

    narrowest: NotRequired[Verdict]
    widest: NotRequired[Verdict]


class Width(TypedDict):
    """A number of instances with its predictions."""

    instances: int
    number_gpus: int
    tokens_per_second: float
    low: float
    high: float
    low_share: float
    high_share: float
    p_valid: float
    rounds: float
    round_samples: int


class OnDemandAlone(TypedDict):
    """Outcome with on-demand instances only."""

    instances: int
    cost_usd: float
    finish: datetime
    late_slots: float


class OnDemandForms(TypedDict):
    """On-demand only at the median throughput and at the lower end of its interval."""

    median: OnDemandAlone
    low: OnDemandAlone


class Expectation(TypedDict):
    """Expected cost, finish and risk over sampled scenarios.

    Without observed availability spot is assumed never to be lost, and interval and risk are null.
    """

    cost_usd: float
    cost_p10_usd: float | None
    cost_p90_usd: float | None
    finish: datetime
    late_probability: Share | None


class SpotForms(TypedDict):
    """Expectations at the median throughput and at both ends of its interval."""

    median: Expectation
    low: Expectation
    high: Expectation


class RunnerUp(TypedDict):
    """Configuration that was not chosen; its expected cost is null if it was not planned."""

    configuration: Configuration
    label: str
    market: str
    tokens_per_second: float
    low: float
    high: float
    planned: bool
    on_demand_usd: float | None
    expected_cost_usd: float | None
    expected_cost_p10_usd: float | None
    expected_cost_p90_usd: float | None
    expected_finish: datetime | None
    late_probability_low: float | None
    why: str


class FilledOutcome(TypedDict):
    """Simulated outcome of a filled job on the recorded data of its market."""

    policy: str
    model: Model
    cost_usd: float
    finish: datetime | None
    on_time: OnTime
    spot_share: Share
    utility_usd: Valued


class ScoredPolicy(FilledOutcome):
    """Simulated outcome compared with the hindsight optimum."""

    gap_to_hindsight_usd: float


class ScoredRunnerUp(FilledOutcome):
    """Simulated outcome of a configuration that was not chosen."""

    label: str
    market: str
    expected_cost_usd: float
    on_demand_only_usd: float | None


class FilledScore(_From):
    """Simulation of a filled request until its deadline."""

    deadline: datetime
    outcome: ScoredPolicy
    on_demand_only_usd: float | None
    saved_share: Annotated[
        float | None, Keys(description="Null if the job was given up, or no on-demand price is known.")
    ]
    expected_cost_usd: float
    expected_inside: bool
    policies: list[ScoredPolicy]
    hindsight: Bracket
    at_low: FilledOutcome
    at_high: FilledOutcome
    runners_up: list[ScoredRunnerUp]
    regret_usd: float
    gaps: Count
    synthetic: Sentences
    allocations: list[InstancesOfSlot]


class FillAnswer(TypedDict):
    """A fine-tuning request filled: ``slackwater fill --json``."""

    request: Annotated[dict[str, Any], Keys(description="Request as read.")]
    at: datetime
    deadline: datetime
    rule: str
    assumed: Sentences
    outside: Annotated[
        Sentences, Keys(description="Parts of the request outside the range of the measurements.")
    ]
    knowledge: str
    measured_runs: Annotated[
        int, Keys(**NOT_NEGATIVE, description="Number of runs of reported jobs used for the prediction.")
    ]
    configuration: Configuration
    tokens: float
    tokens_per_second: Rate
    validity: Validity
    widths: list[Width]
    on_demand: OnDemandForms
    spot: SpotForms
    policy: str
    policy_because: str
    decision: Annotated[FilledDecision, Keys(description="Decision for the first slot of the job.")]
    runners_up: list[RunnerUp]
    rejected: Sentences
    left_out: Sentences
    synthetic: Sentences
    job: Annotated[dict[str, Any], Keys(description="Job, in the form accepted by `slackwater job add`.")]
    score: NotRequired[FilledScore]
    job_file: NotRequired[str]
    html: NotRequired[str]


class WidthShare(TypedDict):
    """A number of GPUs, and the share of jobs that get it."""

    gpus: float
    probability: Share


class RentedType(TypedDict):
    """GPUs rented for a type of job."""

    type: str
    rate_per_hour: float
    load_gpus: float
    widths: list[WidthShare]
    response_hours: float
    gpus: float
    spend: float
    loss_per_hour: float


class RentalBaseline(TypedDict):
    """The rental or a baseline, computed by closed form where available and by simulation."""

    policy: str
    note: NotRequired[str]
    response_hours: NotRequired[float]
    gpus: NotRequired[float]
    loss_per_hour: NotRequired[float]
    simulated_response_hours: NotRequired[float]
    response_error: NotRequired[float]
    simulated_gpus: NotRequired[float]
    gpus_error: NotRequired[float]


class FrontierPoint(TypedDict):
    """Outcome of another budget."""

    budget: float
    response_hours: float
    loss_per_hour: float
    spend: float
    equal_widths_response_hours: NotRequired[float]
    equal_widths_loss_per_hour: NotRequired[float]


class Sensitivity(TypedDict):
    """Outcome of the same budget at other arrival rates; null if it no longer covers the load."""

    arrivals_of: str
    factor: float
    response_hours: float | None
    loss_per_hour: float | None


class Elasticity(TypedDict):
    """Percentage increase for 1 % more arrivals."""

    arrivals_of: str
    response: float
    loss: float


class AtListPrice(TypedDict):
    """Outcome of the same budget without spot, or a note that explains why the budget is too small."""

    response_hours: float | None
    loss_per_hour: float | None
    gpus: float | None
    note: str


class MarketPrice(TypedDict):
    """Effective price of a GPU-hour on a market."""

    market: str
    at: datetime
    forecaster: str
    fallback: str
    horizon_hours: float
    gpus_per_instance: int
    losses_per_spot_gpu_hour: float
    assumptions: Sentences
    usd_per_gpu_hour: float
    list_usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    spot_share: Share
    fleet_gpus: float
    lost_to_restarts: float
    restart_hours: float
    at_list_price: AtListPrice


class RentAnswer(TypedDict):
    """GPUs for each job of a stream: ``slackwater rent --json``."""

    budget: float
    unit: Literal["GPUs", "USD per hour"]
    whole: bool
    seed: int
    jobs_per_hour: float
    load_gpus: float
    least_budget: float
    response_hours: float
    spend: float
    gpus: float
    loss_per_hour: float
    loss_unit: str
    multiplier: float
    hours_saved_by_one_more_gpu: float
    loss_saved_by_one_more_gpu: float
    mixed: str | None
    types: list[RentedType]
    baselines: list[RentalBaseline]
    frontier: list[FrontierPoint]
    sensitivity: list[Sensitivity]
    elasticity: list[Elasticity]
    types_file: str
    market: MarketPrice | None
    notes: Sentences
    html: NotRequired[str]


class _Published(GenerateJsonSchema):
    """Schema generator without titles and docstrings; a nullable type is a list of two types."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: the key serves as the title."""
        return False

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Return an object schema without the title and the docstring of the class."""
        made = super().typed_dict_schema(schema)
        return {key: value for key, value in made.items() if key not in ("title", "description")}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Return a constant for a single value, an enumeration for several."""
        made = super().literal_schema(schema)
        return {"const": made["const"]} if "const" in made else made

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return a schema that also allows null."""
        inner = self.generate_inner(schema["schema"])
        return (
            {**inner, "type": [inner["type"], "null"]} if "type" in inner else super().nullable_schema(schema)
        )


def schema_of(form: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, with all definitions inlined."""
    made = TypeAdapter(form).json_schema(schema_generator=_Published)
    whole: dict[str, Any] = _inline_references(made, made.pop("$defs", {}))
    return whole


def _inline_references(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return part of a schema with each reference replaced by its definition."""
    if isinstance(part, list):
        return [_inline_references(element, definitions) for element in part]
    if not isinstance(part, Mapping):
        return part
    own = {key: _inline_references(value, definitions) for key, value in part.items() if key != "$ref"}
    if "$ref" not in part:
        return own
    return {**_inline_references(definitions[part["$ref"].rpartition("/")[2]], definitions), **own}


#: Title and type of each answer by command. The schema "decision" is generated from `DECISION` instead.
FORMS: Final[dict[str, tuple[str, Any]]] = {
    "run": ("One turn of the loop: `slackwater run --json`", TurnAnswer),
    "forecast": ("Forecasts of price and count: `slackwater forecast --json`", ForecastAnswer),
    "replay": (
        "A job simulated on recorded market data: `slackwater replay --json`",
        ReplayAnswer | ReplaysAnswer,
    ),
    "backtest": ("A job simulated at many starts: `slackwater backtest --json`", BacktestAnswer),
    "accuracy": (
        "Accuracy of forecasts compared with last value: `slackwater accuracy --json`",
        AccuracyAnswer,
    ),
    "status": ("Done, missing, failed and stale slots: `slackwater status --json`", StatusAnswer),
    "fill": ("A fine-tuning request filled: `slackwater fill --json`", FillAnswer),
    "rent": ("GPUs for each job of a stream: `slackwater rent --json`", RentAnswer),
}
PROMISE: Final = "Within a version, keys may be added, but no key is removed or changes its type: readers must ignore unknown keys."


def schema(name: str) -> dict[str, Any]:
    """Return the published JSON Schema of an answer; raises `InputError` for an unknown name."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:slackwater:{name}"}
    if name == "decision":
        heading = {"title": "Decision of slackwater for a job and a slot", "description": PROMISE}
        return head | {"$id": "urn:slackwater:decision:2"} | heading | schema_of(row_type(DECISION))
    if name not in FORMS:
        raise InputError(f"unknown schema {name!r}", expected=f"one of {', '.join(names())}")
    title, form = FORMS[name]
    version = {"replay": f":{REPLAY.rpartition('/')[2]}"}.get(name, "")
    return head | {"$id": head["$id"] + version, "title": title} | schema_of(form)


def names() -> list[str]:
    """Return the names of all schemas."""
    return ["decision", *FORMS]
