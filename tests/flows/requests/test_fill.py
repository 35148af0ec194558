"""Test `slackwater fill`: the choice and its rules, its explanation, and no use of later data (M9.1, M9.4, M1.2)."""

import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from command_kit import printed
from fill_kit import AT, SETTINGS, STEP, THREE, asked, market_store, turn_at, write_measurements
from make import make_window

from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.requests.fill import (
    answer_of,
    fill,
    measured_runs,
    offers_of,
    run_filled,
    score_answer,
    with_measured,
    write_job_file,
)
from slackwater.flows.requests.page import fill_report
from slackwater.forecasting.configurations.facts import gpu, known_gpus
from slackwater.forecasting.configurations.model import fit_configurations
from slackwater.optimization.job.definition import is_finished
from slackwater.optimization.job.request import read_request, slot_job
from slackwater.optimization.job.units import gpu_type_of, gpu_types
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay
from slackwater.optimization.requests.candidates import (
    Candidate,
    Knowledge,
    Terms,
    Width,
    candidates_of,
    rated_gpu,
    usable,
    widths_of,
)
from slackwater.optimization.requests.choice import RULES, MisjudgingPolicy, screened_of, throughput_ratio
from slackwater.optimization.requests.request import complete_request, parse_tuning_request
from slackwater.warehouse.errors import InputError, JobError, MarketError
from slackwater.warehouse.history import Market
from slackwater.warehouse.store.connection import open_store


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fit_configurations(write_measurements(tmp_path_factory.mktemp("runs")), seed=1)


@pytest.fixture(scope="module")
def markets(tmp_path_factory):
    """Return a warehouse of markets for copying."""
    folder = tmp_path_factory.mktemp("markets")
    market_store(folder).close()
    return folder / "w.duckdb"


@pytest.fixture(scope="module")
def store(markets, tmp_path_factory):
    """Yield a store of markets for read-only use."""
    with open_store(shutil.copy(markets, tmp_path_factory.mktemp("read") / "w.duckdb")) as opened:
        yield opened


@pytest.fixture
def own(markets, tmp_path):
    """Yield a store of markets that the test may change."""
    with open_store(shutil.copy(markets, tmp_path / "w.duckdb")) as opened:
        yield opened


@pytest.fixture(scope="module")
def filled(store, model):
    return fill(turn_at(store), asked(), model)


def values(filled):
    return answer_of(filled, STEP)


# Contents of a request


def test_every_default_is_told():
    told = " ".join(asked().assumed)
    for name in ("method", "tokens_per_sample", "overhead_minutes", "value_usd", "epochs"):
        assert name in told
    whole = asked(method="full", tokens_per_sample=1024, overhead_minutes=3.0, value_usd=9.0, epochs=2.0)
    assert whole.assumed == ()
    assert whole.tokens == 50_000 * 1024 * 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"samples": None}, "neither samples nor tokens"),
        ({"tokens": 1e6}, "both samples and tokens"),
        ({"deadline_in": None}, "neither deadline nor deadline_in"),
        ({"model": None}, "model"),
        ({"gpus": 8}, "gpus"),
        ({"method": "prompt"}, "method"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_what_a_request_cannot_say(changes, why):
    given = {k: v for k, v in {**THREE, **changes}.items() if v is not None}
    with pytest.raises(JobError, match=why):
        complete_request(parse_tuning_request(given, "test"))


# GPUs of instance types


def test_every_gpu_of_the_table_has_known_figures():
    types = [rated_gpu(Market.parse(f"{one.provider}/r/z/{one.instance_type}")) for one in gpu_types()]
    rated = {gpu(one.gpu_model).name for one in types if one is not None}
    assert rated == set(known_gpus())  # `slackwater fill` does not support the other GPUs of the catalogue
    assert len({(one.provider, one.instance_type) for one in gpu_types()}) == len(gpu_types())


@pytest.mark.parametrize(
    ("key", "gpus"),
    [
        ("primeintellect/global/all/A100_80GB_SXM4_x8", 8),
        ("primeintellect/global/all/A100_80GB_SXM4", None),  # machines of different sizes
        ("primeintellect/global/all/A100_80GB_SXM4_x0", None),
        ("primeintellect/global/all/A100_80GB_SXM4_xl", None),
        ("aws/us-east-1/us-east-1a/p3.16xlarge", 8),
        ("gcp/us-east-1/us-east-1a/p3.16xlarge", None),
    ],
)
def test_gpus_of_an_instance(key, gpus):
    found = gpu_type_of(Market.parse(key))
    assert (found.gpus if found else None) == gpus


# H(n)


def terms(**changes):
    base = {
        "model_name": "llama3.1-8b", "method": "lora", "tokens_per_sample": 2048, "gpu_model": "NVIDIA-A100-SXM4-80GB",
        "gpus_per_instance": 2, "batch_size": 24, "torch_dtype": "bfloat16",
    }  # fmt: skip
    return Terms(**{**base, **changes})


@pytest.mark.parametrize("gpus", [1, 2, 3])
@pytest.mark.parametrize("batch", [7, 24, 32])
def test_the_samples_of_a_step_stay_the_same_for_every_n(model, gpus, batch):
    knowledge = Knowledge(model=model)
    own = terms(gpus_per_instance=gpus, batch_size=batch)
    for width in widths_of(knowledge, [own], 12)[own]:
        number = width.instances * gpus
        if number > batch:
            assert not width.runs
            assert "more than" in width.reason
            continue
        did = width.rounds * width.configuration.batch_size
        assert width.configuration.batch_size % number == 0
        assert batch <= did < batch + width.rounds * number  # each GPU idles for at most a sample per round
        (rate,) = model.predict([width.configuration])
        assert width.tokens_per_second == pytest.approx(rate.tokens_per_second * batch / did)
        assert width.low < width.tokens_per_second < width.high


def test_a_batch_that_does_not_fit_is_done_in_rounds(model):
    small = {
        "gpu_model": "NVIDIA-A100-SXM4-80GB",
        "gpus_per_instance": 1,
        "batch_size": 128,
        "tokens_per_sample": 4096,
    }
    own = terms(**small)
    knowledge = Knowledge(model=model)
    one = widths_of(knowledge, [own], 1)[own][0]
    assert one.rounds > 1
    assert one.rounds * one.configuration.batch_size == 128
    fewer = own.configuration(1, one.rounds // 2)
    assert not knowledge.validity(fewer).valid or knowledge.validity(fewer).p_valid < 0.8


def width(n, p):
    return Width(
        instances=n, configuration=None, rounds=1, tokens_per_second=float(p > 0), low=0.5, high=2.0, reason="",
        outside=(), p_valid=p,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chances", "kept"),
    [
        ([0.9, 0.9, 0.9], [1, 2, 3]),
        ([0.0, 0.9, 0.9], [2, 3]),
        ([0.9, 0.0, 0.9], [3]),
        ([0.6, 0.9, 0.6], [2]),
        ([0.6, 0.0, 0.7], [3]),
        ([0.0, 0.0], []),
        ([], []),
    ],
)
def test_a_job_holds_any_n_between_two_bounds(chances, kept):
    widths = [width(n, p) for n, p in enumerate(chances, start=1)]
    assert [one.instances for one in usable(widths)] == kept


# The choice


def test_three_fields_give_a_job_that_can_be_stored(filled, tmp_path):
    answer = values(filled)
    request = filled.winner.candidate.request
    assert request.workload.amount == 50_000 * 2048
    assert request.ends - request.starts == pd.Timedelta("12h")
    assert len(request.throughput.rates) == request.n_max == answer["configuration"]["n_max"]
    assert {"configuration", "tokens_per_second", "validity", "on_demand", "spot", "runners_up"} <= set(
        answer
    )
    assert any("batch_size" in text for text in answer["assumed"])
    # the measurements contain no H100 with NVLink
    assert any("was never measured" in text for text in answer["outside"])


def test_a_job_that_several_markets_fit_may_move_among_them(store, model, filled, tmp_path):
    job = filled.job
    assert job.markets == ("gcp/*/*/a3-highgpu-1g",)
    assert job.market == filled.winner.candidate.request.market
    # The LoRA checkpoint of a model with 8 billion parameters: weights and adapter.
    assert job.moving.checkpoint_gb == pytest.approx(16.5, abs=0.2)
    assert any(text.startswith("markets = ") for text in filled.assumed)
    assert any(text.startswith("[moving]") for text in filled.assumed)
    path = tmp_path / "job.toml"
    write_job_file(job, path, notes=filled.assumed)
    assert read_request(path) == job
    assert answer_of(filled, STEP)["job"]["markets"] == list(job.markets)
    # With a single market the job cannot move.
    only = fill(turn_at(store), asked(markets=[f"{job.market}@{job.source}"]), model)
    assert only.markets == ()
    assert only.job == only.winner.candidate.request
    assert not [text for text in only.assumed if "move" in text]


def test_the_winner_is_the_cheapest_of_those_planned(filled):
    planned = [filled.winner, *(one.planned for one in filled.runners_up if one.planned)]
    assert len(planned) > 1
    assert all(one.screened.in_time for one in planned)
    least = min(one.expected.cost_usd for one in planned)
    alike = [one for one in planned if one.expected.cost_usd <= 1.01 * least]
    assert filled.winner in alike
    assert throughput_ratio(filled.winner) == min(throughput_ratio(one) for one in alike)
    assert values(filled)["rule"] == RULES["cost"]


def test_every_loser_has_a_sentence_with_figures(filled):
    assert filled.runners_up
    for runner_up in filled.runners_up:
        assert any(letter.isdigit() for letter in runner_up.why)


def test_time_is_an_objective_of_its_own(store, model, filled):
    fast = fill(turn_at(store), asked(objective="time"), model)
    planned = [fast.winner, *(one.planned for one in fast.runners_up if one.planned)]
    assert fast.winner.expected.finish_slots <= 1.01 * min(one.expected.finish_slots for one in planned)
    # The shortlists differ: they are made before the paths, by an estimate.
    assert fast.winner.expected.finish_slots <= 1.03 * filled.winner.expected.finish_slots


def test_what_is_given_is_kept(store, model):
    one = fill(turn_at(store), asked(number_gpus=4, batch_size=16, torch_dtype="float16"), model)
    chosen = values(one)["configuration"]
    assert (chosen["number_gpus"], chosen["batch_size"], chosen["torch_dtype"]) == (4, 16, "float16")
    assert not any("batch_size" in text for text in one.assumed)


def test_the_low_end_can_be_planned_by(store, model, filled):
    low = fill(turn_at(store), asked(plan_by="low", batch_size=32, number_gpus=4), model).winner
    request = low.candidate.request
    wide = request.n_max - 1
    assert request.throughput.rates[wide] == pytest.approx(3600 * request.configuration.low[wide])
    assert request.configuration.low[wide] < request.configuration.tokens_per_second[wide]


def test_the_costs_on_demand_alone_are_those_of_whole_slots(filled):
    candidate: Candidate = filled.winner.candidate
    for bound in ("median", "low"):
        job, alone = candidate.job(STEP, bound), candidate.alone(STEP, bound)
        gain = job.throughput.rate(alone.instances) * 0.5
        done = gain * (alone.slots - 1 + job.mu_up)
        assert is_finished(done, job.workload)
        assert not is_finished(done - gain, job.workload)
        assert alone.cost_usd == pytest.approx(
            alone.instances * alone.slots * 0.5 * candidate.offer.on_demand_usd
        )


def test_the_interval_widens_what_is_expected(filled):
    assert filled.winner.low.cost_usd > filled.winner.expected.cost_usd > filled.winner.high.cost_usd
    assert filled.winner.low.finish_slots > filled.winner.high.finish_slots


# Requests that cannot be filled


def test_an_unknown_model_is_told_with_near_ones(store, model):
    with pytest.raises(InputError, match="llama3") as told:
        fill(turn_at(store), asked(model="lama-3.1-8b"), model)
    assert "not known" in str(told.value)
    other = fill(turn_at(store), asked(model="our-own", params_b=8.0), model)
    assert values(other)["configuration"]["model"] == "our-own@8b"
    assert any("our-own" in text for text in values(other)["outside"])


def test_no_market_of_a_known_gpu(store, model):
    with pytest.raises(MarketError, match="L40S"):
        fill(turn_at(store), asked(gpu_model="L40S"), model)
    with pytest.raises(MarketError, match="GPU of its instance type is not known"):
        fill(turn_at(store), asked(markets=["gcp/r1/z9/p3.2xlarge"]), model)
    with pytest.raises(MarketError, match="known GPU"):
        fill(turn_at(store, AT - pd.Timedelta(days=30)), asked(), model)


def test_no_valid_configuration_says_how_much_memory_lacks(store, model):
    with pytest.raises(JobError, match=r", \d+(\.\d)? GB too much") as told:
        fill(turn_at(store), asked(model="llama3.1-70b", method="full", number_gpus=2, batch_size=8), model)
    assert "nearest are 2 x NVIDIA-H100-SXM5-80GB" in str(told.value), "no other number was requested"
    assert "80.0 GB" in str(told.value)


def test_what_is_estimated_to_fit_but_hardly_runs_is_not_called_too_much(store, model):
    def doubted(configurations):
        """Four GPUs have the highest probability to fit, although other numbers need less memory."""
        likeliest, other = ({"p_valid": 0.35, "memory_gb": 76.7}, {"p_valid": 0.1, "memory_gb": 70.0})
        return [
            replace(verdict, valid=False, **(likeliest if one.number_gpus == 4 else other))
            for one, verdict in zip(configurations, model.validity(configurations), strict=True)
        ]

    with pytest.raises(JobError, match="no valid configuration") as told:
        fill(turn_at(store), asked(), SimpleNamespace(predict=model.predict, validity=doubted))
    assert (
        "nearest are 4 x NVIDIA-H100-SXM5-80GB with a batch of 4: 76.7 GB a GPU of 80.0 GB, "
        "which is estimated to fit, but holds with probability 0.35 only (" in str(told.value)
    )
    assert "too much" not in str(told.value)


def test_more_gpus_than_samples_is_what_is_said(store, model):
    with pytest.raises(JobError, match="no valid configuration") as told:
        fill(turn_at(store), asked(number_gpus=4, batch_size=2), model)
    assert "4 GPUs were requested, and a batch of 2 has a sample for 2 at most" in str(told.value)


def test_a_deadline_out_of_reach_says_by_how_much(store, model):
    with pytest.raises(JobError, match=r"\d+(\.\d)? h too late") as told:
        fill(turn_at(store), asked(samples=5_000_000), model)
    assert "has 12 h" in str(told.value)


def test_a_budget_out_of_reach_names_the_cheapest(store, model):
    with pytest.raises(JobError, match=r"within 0\.01 USD.*expected to cost"):
        fill(turn_at(store), asked(budget_usd=0.01), model)


def test_a_budget_is_kept_at_the_low_end(store, model, filled):
    limit = filled.winner.low.cost_usd
    assert fill(turn_at(store), asked(budget_usd=limit + 0.01), model).winner.low.cost_usd <= limit + 0.01


# Prices without counts


def test_prices_alone_give_the_cost_and_risk_of_measured_markets(own, model):
    own.execute("DELETE FROM availability")
    filled = fill(turn_at(own), asked(), model)
    answer = values(filled)
    for row in answer["spot"].values():
        assert 0 < row["cost_p10_usd"] <= row["cost_usd"] <= row["cost_p90_usd"]
        assert 0.0 <= row["late_probability"] <= 1.0
    assert answer["on_demand"]["median"]["late_slots"] == 0
    text = " ".join(printed(fill_report(answer).blocks).split())
    assert (
        "spot costs and the risk of missing the deadline assume that it changes as in measured markets"
        in text
    )
    score = score_answer(run_filled(turn_at(own), filled, policy_named("UP")), filled, STEP)
    for row in (score["outcome"], score["at_low"], *score["policies"], *score["runners_up"]):
        assert row["on_time"] is (True if not row["spot_share"] else None)
    assert {slot["available"] for slot in score["allocations"]} == {None}


# No use of later data


def scrambled(store, when):
    """Change every observation of the warehouse after ``when``."""
    store.execute(
        "UPDATE availability SET available = 16 - available WHERE observed_at > ?", [when.to_pydatetime()]
    )
    store.execute(
        "UPDATE price SET price_usd = 0.01 + price_usd / 7 WHERE observed_at > ?", [when.to_pydatetime()]
    )


def told(answer):
    return {key: value for key, value in answer.items() if key != "decision"} | {
        "decision": {k: v for k, v in answer["decision"].items() if k != "solver"}
    }


def test_what_comes_after_does_not_change_what_is_filled(own, model, filled):
    scrambled(own, AT)
    again = fill(turn_at(own), asked(), model)
    assert told(values(again)) == told(values(filled))
    later = fill(turn_at(own, AT + pd.Timedelta("6h")), asked(), model)
    assert values(later)["spot"] != values(filled)["spot"]


def test_a_report_is_fed_back_from_when_it_was_known(own, model):
    first = fill(turn_at(own), asked(batch_size=32, number_gpus=4), model)
    request = first.winner.candidate.request
    save_jobs(own, [request], origin="user", at=AT, step=STEP)
    n, when = request.n_max, AT + 2 * STEP
    slower = 0.7 * request.configuration.tokens_per_second[n - 1]
    known = AT + 4 * STEP
    stored = find_job(own, request.name)
    done = slower * (3600 - 60 * request.checkpoint.overhead_minutes)
    report = Report(job=request.name, reported_at=when, known_at=known, progress=done, spot=n)
    save_report(own, report, stored)
    fixed = {"batch_size": 32, "number_gpus": 4, "markets": [f"{request.market}@{request.source}"]}
    before, after = (fill(turn_at(own, at), asked(**fixed), model) for at in (known - STEP, known))
    assert (before.measured, after.measured) == (0, 1)
    wide = -1
    old, new = (values(one)["widths"][wide]["tokens_per_second"] for one in (before, after))
    assert old == pytest.approx(request.configuration.tokens_per_second[n - 1])
    assert abs(math.log(new / slower)) < abs(math.log(old / slower))
    assert with_measured(model, measured_runs(own, known_at=when)) is model


# Cost of a wrong throughput


@pytest.mark.parametrize(
    "name", ["UP", "OD-only", pytest.param("AHAP(3,1,0.9)", marks=pytest.mark.slow)]
)  # compiles the twin
def test_a_policy_that_is_right_is_not_misjudged(filled, name):
    running = filled.winner
    window, policy = market_of(running), policy_named(name)
    plain = replay(policy, running.live.run, window)
    assert (
        replay(MisjudgingPolicy(policy=policy, believes=running.live.run), running.live.run, window) == plain
    )


def test_believing_too_much_finishes_later_than_knowing(filled):
    candidate, running = filled.winner.candidate, filled.winner
    true, window = candidate.job(STEP, "low"), market_of(running, spot=0)
    policy = policy_named("MSU")  # waits as long as it believes possible
    believed = replay(MisjudgingPolicy(policy=policy, believes=running.live.run), true, window)
    known = replay(policy, true, window)
    assert known.on_time
    assert (believed.finish_slots or math.inf) > known.finish_slots


def market_of(running, spot=3):

    slots = running.live.run.deadline_slots
    return make_window(1.0, spot, on_demand_usd=running.history.on_demand_usd, slot_hours=0.5, slots=slots)


# The complete loop


def test_the_replay_is_that_of_the_job(store, model, filled):
    ran = run_filled(turn_at(store), filled, policy_named("UP"))
    answer = score_answer(ran, filled, STEP)
    ended = ran.scored.ended
    assert ended.run == slot_job(
        filled.winner.candidate.request, step=STEP, on_demand_usd=ended.windows[0].on_demand_usd
    )
    outcome = ran.scored.outcomes[0]
    assert answer["outcome"]["cost_usd"] == pytest.approx(outcome.on_demand_usd + outcome.spot_usd)
    assert answer["outcome"]["finish"] == ended.start + pd.Timedelta(seconds=math.ceil(outcome.finish - 1e-6))
    assert [row["policy"] for row in answer["policies"]] == ["UP", "OD-only", "MSU"]
    assert {row["model"] for row in answer["policies"]} == {"world"}
    assert len(answer["runners_up"]) == sum(one.planned is not None for one in filled.runners_up)
    assert answer["at_high"]["cost_usd"] <= answer["outcome"]["cost_usd"] <= answer["at_low"]["cost_usd"]
    assert answer["regret_usd"] >= 0
    # Utilities are null for a job without a value.
    told = [*answer["policies"], *answer["runners_up"], answer["at_low"], answer["at_high"]]
    assert ended.run.must_finish
    assert filled.winner.candidate.request.value_usd is None
    assert {row["utility_usd"] is None for row in told} == {ended.run.must_finish}
    assert (
        (answer["hindsight"]["low"] is None) == (answer["hindsight"]["high"] is None) == ended.run.must_finish
    )


def test_a_value_that_was_given_is_counted(store, model):
    """Counterpart of the test above, in which the utility of a job without a value is null."""
    one = fill(turn_at(store), asked(value_usd=500.0), model)
    ran = run_filled(turn_at(store), one, policy_named("UP"))
    answer = score_answer(ran, one, STEP)
    assert not ran.scored.ended.run.must_finish
    assert {row["utility_usd"] is None for row in answer["policies"]} == {False}


def test_a_record_that_ends_too_soon_is_told(store, model):
    late = AT + pd.Timedelta("20h")
    one = fill(turn_at(store, late), asked(), model)
    with pytest.raises(MarketError, match="the job's last slot"):
        run_filled(turn_at(store, late), one, policy_named("UP"))


def test_a_market_is_offered_by_what_it_has_shown(store):
    left_out = []
    offers = offers_of(turn_at(store), named=(), gpu_model=None, left_out=left_out)
    assert {one.gpu.instance_type for one in offers} == {"a3-highgpu-1g"}
    assert len(offers) + len(left_out) == 3
    assert all(0.0 <= one.spot_share(n) <= 1.0 for one in offers for n in (1, 4, 16))
    for one in offers:
        assert one.screened_usd(4) <= 4 * one.on_demand_usd + 1e-9


def test_candidates_are_asked_for_once(store, model, filled):
    knowledge = Knowledge(model=model)
    rejected = []
    offers = offers_of(turn_at(store), named=(), gpu_model=None, left_out=[])
    found = candidates_of(asked(), offers, knowledge, rejected)
    assert len({(one.offer.key, one.terms, one.gpus) for one in found}) == len(found)
    assert all(one.alone.slots > 0 for one in screened_of(found, STEP))
    assert SETTINGS.planner == "last_value"
