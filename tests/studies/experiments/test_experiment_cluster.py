"""The experiment on a cluster (M9.5): predictions for unseen families, paired streams, answer, page, command."""

import json

import numpy as np
import pandas as pd
import pytest
from command_kit import call, options_of
from open_data import DATA
from page_kit import charts_of, rendered

from slackwater.flows.show.formats import plain
from slackwater.forecasting.configurations.facts import PredictedThroughput, Validity
from slackwater.forecasting.configurations.runs import RUNS_FILE
from slackwater.studies.cluster.simulation import Cluster
from slackwater.studies.cluster.stream import (
    BatchHabit,
    Default,
    Family,
    WorkloadLaw,
    default_attempts,
    default_options,
    draw_requests,
    known_attempts,
    known_options,
    users_widths,
)
from slackwater.studies.experiments.cluster import (
    BATCHES,
    GPU_MODEL,
    LABELS_FILE,
    POSTER,
    WIDTHS,
    KnownShare,
    Study,
    StudyScale,
    cluster_answer,
    cluster_report,
    default_mix,
    finetune_folder,
    items_of,
    learn,
    run_cluster,
    usual_defaults,
)
from slackwater.warehouse.errors import InputError

SHARES = tuple((width, 0.25) for width in WIDTHS)
TINY = StudyScale(
    jobs=20, streams=2, loads=(0.5, 0.7), side_streams=2, side_loads=(0.7,), folds=2, shares=(0.0, 1.0), machines=2,
    expected_over=150,
)  # fmt: skip


def family(seed, error=0.0, wrong=0.0):
    """Return a family of the whole grid: rates saturate with the batch, memory runs out; predictions are off by ``error``."""
    rng = np.random.default_rng(seed)
    gpus, batch = (a.ravel() for a in np.meshgrid(WIDTHS, BATCHES, indexing="ij"))
    per_gpu = batch / gpus
    rate = 3000.0 * gpus**0.97 * per_gpu / (per_gpu + 3.0)
    runs = (batch % gpus == 0) & (per_gpu <= rng.choice([8, 16, 32]))
    flipped = (rng.random(gpus.size) < wrong) & (batch % gpus == 0)
    valid = runs ^ flipped
    return Family(
        name=f"model-{seed}", gpus=gpus, batch=batch, true=np.where(runs, rate, 0.0),
        believed=rate * np.exp(error * rng.standard_normal(gpus.size)), p_valid=np.where(valid, 0.9, 0.1), valid=valid,
    )  # fmt: skip


@pytest.fixture(scope="module")
def knowledge():
    return KnownShare(
        families=tuple(family(seed, error=0.05, wrong=0.05) for seed in range(6)), shares=SHARES,
        figures={
            "families": 6.0, "measured": 10.0, "interpolated": 5.0, "truth_error": 0.01, "mdape": 0.05,
            "validity_error": 0.05, "failure_rate": 0.4,
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(knowledge):
    return run_cluster(knowledge, scale=TINY, seed=3)


@pytest.fixture(scope="module")
def answer(ran):
    return cluster_answer(ran, data="here <b>", fast=True)


def test_picks_of_users_and_models():
    exact, vague = family(1), family(1, error=0.3, wrong=0.2)
    grid = Default(name="grid", shares=SHARES, habit=BatchHabit.GRID)
    one = Default(name="one", shares=((8, 1.0),), habit=BatchHabit.ONE)
    doomed = Default(name="doomed", shares=SHARES, habit=BatchHabit.GRID, failing=0.62)
    picks = [default_attempts(exact, doomed, seed=(seed,)) for seed in range(600)]
    # Repeated picks count once, so the share of failing first picks equals the setting.
    assert abs(np.mean([p[0].rate == 0 for p in picks]) - 0.62) < 3 * np.sqrt(0.62 * 0.38 / 600)
    eight = Default(name="eight", shares=((1, 1.0),), habit=BatchHabit.EIGHT)
    for seed in range(40):
        attempts = default_attempts(exact, grid, seed=(seed,))
        assert attempts[-1].rate > 0
        assert all(a.rate == 0 for a in attempts[:-1])
        assert default_attempts(exact, grid, seed=(seed,)) == attempts
        options = default_options(exact, grid, seed=(seed,))
        assert any(a.rate > 0 for a in options)
        assert all(a.believed == a.gpus for a in options)
        widths = users_widths(vague, grid, seed=(seed,))
        assert widths[-1].rate > 0
        assert widths[0].gpus == attempts[0].gpus
    assert {a.gpus for a in default_attempts(exact, one, seed=(0,))} == {8}
    assert default_attempts(exact, eight, seed=(0,))[0].gpus == 1
    fastest, cheapest = known_attempts(exact, 0.0)[0], known_attempts(exact, float("inf"))[0]
    assert fastest.rate == exact.true.max()
    assert cheapest.rate / cheapest.gpus == (exact.true / exact.gpus).max()
    assert known_attempts(vague, 0.0)[-1].rate > 0
    for width in WIDTHS:
        first = next(a for a in known_options(exact) if a.gpus == width)
        assert first.rate == exact.true[exact.gpus == width].max()


def test_an_oracle_never_fails_and_what_a_model_imagines_is_its_own():
    vague = family(2, error=0.3, wrong=0.3)
    assert len(known_attempts(vague.seen_by_oracle(), 0.0)) == 1
    imagined = vague.as_believed()
    np.testing.assert_array_equal(imagined.true[vague.valid], vague.believed[vague.valid])
    assert (imagined.true[~vague.valid] == 0).all()


def test_streams_are_poisson_and_lognormal():
    requests = draw_requests(6, 4000, WorkloadLaw(median_tokens=5e6, sigma=1.0), seed=(1,))
    gaps = np.diff([r.arrival for r in requests])
    assert abs(gaps.mean() - 1.0) < 3 / np.sqrt(len(gaps))
    assert abs((gaps > 1.0).mean() - np.exp(-1)) < 3 * np.sqrt(0.233 / len(gaps))
    logs = np.log([r.tokens / 5e6 for r in requests])
    assert abs(logs.mean()) < 3 / np.sqrt(len(logs))
    assert abs(logs.std() - 1.0) < 3 / np.sqrt(2 * len(logs))
    assert draw_requests(6, 5, WorkloadLaw(), seed=(1,)) == draw_requests(6, 5, WorkloadLaw(), seed=(1,))


def test_the_load_is_that_of_the_default(knowledge):
    study = Study(
        families=knowledge.families, defaults=usual_defaults(SHARES), workload=WorkloadLaw(), cluster=Cluster(), jobs=10, seed=1,
        expected_over=300,
    )  # fmt: skip
    mixes = {d.name: default_mix(study, d) for d in study.defaults}
    assert (
        mixes["one GPU, 1 a GPU"]["slowdown"]
        > mixes["1 a GPU"]["slowdown"]
        > mixes["a node, 1 a GPU"]["slowdown"]
        > 1
    )
    assert mixes["grid"]["failures"] > mixes["1 a GPU"]["failures"]
    assert all(m["slowdown_free"] <= m["slowdown"] for m in mixes.values())


@pytest.mark.slow
def test_every_kind_runs_on_the_same_streams(ran):
    plain_rows = ran.rows[ran.rows["variant"] == ""]
    usual, random = (plain_rows[plain_rows["default"] == name] for name in ("a node, 8 a GPU", "grid"))
    everything = {"default", "batch only", "predicted", "oracle"}
    assert set(usual[usual["scheduler"] == "FIFO"]["knowledge"]) == everything
    assert set(usual[usual["scheduler"] == "Sia-like"]["knowledge"]) == everything - {"batch only"}
    assert set(random["knowledge"]) == {"default", "sensible", "predicted", "oracle"}
    assert set(random["load"]) == set(usual["load"]) == set(TINY.loads)
    assert (usual[usual["knowledge"] == "oracle"]["failed_starts"] == 0).all()
    assert set(ran.rows["default"]) == {d.name for d in ran.study.defaults}
    middle = [s for s in items_of(ran.settings, TINY) if s.variant]
    assert {s.load for s in middle} == {0.7}


@pytest.mark.slow
def test_the_answer_has_what_knowledge_is_worth(answer):
    for row in answer["reductions"]:
        low, high = row["predicted_interval"]
        assert low <= row["predicted"] <= high < 1.0
        assert row["predicted"] <= row["oracle"] + 0.05
    assert {r["scheduler"] for r in answer["reductions"]} == set(answer["headline"]) == set(POSTER)
    found = answer["poster"]
    assert (answer["default"], found["default"], found["reported"]) == ("a node, 8 a GPU", "grid", POSTER)
    for scheduler, own in found["headline"].items():
        assert own["predicted"] > own["sensible"] - 0.05
        assert own["predicted"] > answer["headline"][scheduler]["predicted"] > -0.1
        assert own["sensible_interval"][0] <= own["sensible"] <= own["sensible_interval"][1]
    told = " ".join(answer["claims"])
    assert "To such a user predicted configurations add a cut" in told
    assert told.count("the rule of the sensible user alone cuts") == 2
    worse = {
        r["default"]: r["predicted"]
        for r in answer["sensitivity"]
        if r["scheduler"] == "FIFO" and r["load"] == 0.7
    }
    assert worse["one GPU, 1 a GPU"] > worse["a node, 1 a GPU"]
    exact = {r["share"]: r["ratio"] for r in answer["order"]["machine"] if r["error"] == 0.0}
    assert exact[1.0] == pytest.approx(1.0)
    assert exact[0.0] > 1.3
    shares = [r["share"] for r in answer["order"]["cluster"]]
    assert shares == sorted(TINY.shares)
    assert len(answer["claims"]) >= 5
    json.dumps(plain(answer), allow_nan=False)


@pytest.mark.slow
def test_the_page(answer, tmp_path):
    text = rendered(cluster_report(answer))
    assert len(charts_of(text)) == 7
    assert "here &lt;b&gt;" in text
    assert "Partly synthetic." in text
    assert rendered(cluster_report(answer)) == text


def small_folder(path, lengths=(512, 2048)):
    """Write runs and labels of one model and method at two lengths, in the form of the published files."""
    rows = [
        {
            "source": "test", "model_name": "llama3.1-8b", "params_b": 8.0, "method": "lora", "gpu_model": GPU_MODEL,
            "number_nodes": 1, "number_gpus": g, "tokens_per_sample": t, "batch_size": b, "torch_dtype": "bfloat16",
            "tokens_per_second": 3000.0 * g * (b / g) / (b / g + 2.0), "tokens_per_second_per_gpu": 0.0, "train_runtime_s": 100.0,
            "passes": 1.0, "suspect_token_accounting": 0,
        }
        for t in lengths for g in WIDTHS for b in BATCHES[:6] if b % g == 0
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(path / RUNS_FILE, index=False)
    labels = [
        {
            "model_name": "llama3.1-8b", "method": "lora", "gpu_model": GPU_MODEL, "tokens_per_sample": t, "batch_size": b,
            "number_gpus": g, "p_valid": 0.9, "predicted_valid": int(b // g <= 32),
        }
        for t in lengths for g in WIDTHS for b in BATCHES if b % g == 0
    ]  # fmt: skip
    pd.DataFrame(labels).to_parquet(path / LABELS_FILE, index=False)
    return path


class Constant:
    """A model with a constant prediction."""

    def predict(self, configurations):
        return [
            PredictedThroughput(tokens_per_second=1000.0 * c.number_gpus, low=1.0, high=1e6, outside=())
            for c in configurations
        ]

    def validity(self, configurations):
        return [
            Validity(
                valid=True,
                p_valid=1.0,
                reason="",
                memory_gb=None,
                limit_gb=None,
                decided_by="rule",
                outside=(),
            )
            for _ in configurations
        ]


def test_a_family_is_predicted_by_a_model_that_has_seen_nothing_of_it(tmp_path):
    folder = small_folder(tmp_path)
    seen = []

    def fit(without, seed):
        runs = pd.read_csv(without / RUNS_FILE)
        labels = pd.read_parquet(without / LABELS_FILE)
        seen.append((set(runs["tokens_per_sample"]), set(labels["tokens_per_sample"]), seed))
        return Constant()

    known = learn(folder, fit, seed=4, folds=2)
    assert sorted(seen, key=lambda s: min(s[0])) == [({512}, {512}, 4), ({2048}, {2048}, 4)]
    assert len(known.families) == 2
    one = known.families[0]
    at = {(int(g), int(b)): i for i, (g, b) in enumerate(zip(one.gpus, one.batch, strict=True))}
    assert one.true[at[2, 8]] == pytest.approx(3000.0 * 2 * 4 / 6)
    assert one.true[at[8, 4]] == 0.0
    assert not one.valid[at[8, 4]]
    assert one.true[at[1, 64]] == 0.0  # labelled as failing, not measured
    assert one.true[at[8, 128]] > one.true[at[8, 32]]  # labelled valid, read from the surface
    assert known.figures["measured"] == 2 * sum(b % g == 0 for g in WIDTHS for b in BATCHES[:6])
    assert sum(share for _, share in known.shares) == pytest.approx(1.0)


def test_the_folder_is_found_or_the_error_says_what_to_give(tmp_path):
    inner = tmp_path / "finetune"
    inner.mkdir()
    small_folder(inner)
    assert finetune_folder(tmp_path) == finetune_folder(inner) == inner
    with pytest.raises(InputError, match=r"no ft_throughput.csv \(no such folder\); expected a folder with"):
        finetune_folder(tmp_path / "nowhere")
    (inner / LABELS_FILE).unlink()
    with pytest.raises(InputError, match="expected the validity labels of the published classifier"):
        learn(inner, lambda folder, seed: Constant(), seed=1, folds=2)


def test_a_bad_folder_is_one_line_and_the_options_are_documented(tmp_path):
    refused = call("experiment", "cluster", "--data", tmp_path / "nowhere", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.count("\n") == 1
    assert options_of("experiment", "cluster") == {
        "--data",
        "--fast",
        "--seed",
        "--json",
        "--html",
        "--processes",
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "finetune" / RUNS_FILE).is_file(), reason=f"no fine-tuning measurements in {DATA}"
)
def test_the_command_on_the_measured_runs(capsys, tmp_path):
    page = tmp_path / "page.html"
    answer = call(
        "experiment", "cluster", "--data", DATA, "--fast", "--json", "--html", page, "--processes", 1
    ).value
    assert answer["knowledge"]["mdape"] < 0.06
    assert answer["knowledge"]["truth_error"] < 0.03
    assert answer["knowledge"]["measured"] > 700
    # Compared with the random user of the poster's setting.
    fifo, sia = answer["poster"]["headline"]["FIFO"], answer["poster"]["headline"]["Sia-like"]
    assert 0.6 < fifo["predicted"] < 0.9
    assert 0.3 < sia["predicted"] < fifo["predicted"]
    assert abs(fifo["predicted"] - fifo["oracle"]) < 0.03
    # To the sensible user it adds little, and an oracle not much more.
    for one in answer["headline"].values():
        assert 0.0 < one["predicted"] < 0.15
        assert abs(one["predicted"] - one["oracle"]) < 0.03
    assert len(charts_of(page.read_text())) == 7
