"""``slackwater experiment evidence``: what each level knows, one start, and the figures of the answer."""

import numpy as np
import pytest
from page_kit import rendered
from tidy_folder import write_tidy

from slackwater.optimization.belief.archetypes import ALL, archetypes, request_states
from slackwater.optimization.belief.launches import UNKNOWN
from slackwater.studies.experiments import evidence
from slackwater.studies.experiments.belief_calibration import all_predictions, belief_tapes
from slackwater.studies.experiments.evidence import (
    KINDS,
    SIZES,
    WORTHS,
    EvidenceRuns,
    drawn_stretches,
    evidence_answer,
    evidence_report,
    job_case,
    run_start,
    with_evidence,
)
from slackwater.studies.experiments.world import stretches
from slackwater.studies.experiments.world_jobs import DEADLINES


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = write_tidy(tmp_path_factory.mktemp("evidence") / "tidy")
    return stretches(folder, every_days=2, rng=np.random.default_rng(1))[0]


def test_each_level_knows_more_of_the_time_before_the_job(start):
    case = job_case(start, None)
    made = {kind: with_evidence(case, start, kind) for kind in KINDS}
    known = [evidence for _, evidence in made.values()]
    assert [one.first for one in known[:4]] == [0, 0, 48, min(336, start.first)]
    assert [one.launched_slots(0) for one in known[:4]] == [0, 1, 49, 1]
    assert known[0].states.max() == UNKNOWN  # nothing is learned at level 0
    assert known[3].counted_slots(0) == pytest.approx(known[3].first / 8, abs=1)
    assert [one.counted_slots(0) for one in known[4:]] == [49, start.first + 1]
    assert [one.has_count(0) for one in known] == [False] * 4 + [True] * 2
    cases = [found.cases[0] for found, _ in made.values()]
    assert [one.record.first for one in cases[4:]] == [48, start.first]
    assert [one.launches is None for one in cases] == [False] * 4 + [True] * 2


def test_a_hard_deadline_is_met_and_expected_costs_are_ordered(start, monkeypatch):
    monkeypatch.setattr(evidence, "KINDS", KINDS[1:2])
    found = run_start(start, WORTHS[:2])
    assert found.shape == (1, 2, 6)
    expected, low, high, risk, paid, late = found[0, 0]
    assert (risk, late) == (0.0, 0.0)
    assert 0.0 < low <= expected <= high
    assert 0.0 < paid < 2.0


def test_drawn_markets_change_as_the_archetypes_do():
    many = 300
    found = drawn_stretches(many, np.random.default_rng(3))
    for n in SIZES:
        states = [request_states(start.counts, n) for start in found if start.n_max == n]
        assert {start.slots for start in found if start.n_max == n} == set(DEADLINES)
        prior = archetypes(n, 0.5)
        changes = np.mean([np.mean(np.diff(own) != 0) for own in states])
        stays = np.einsum("aks,akss->a", prior.share, prior.chain) @ prior.weight
        # Fewer: a market drawn with rare changes stays longer in its states.
        assert 0.5 * (1.0 - stays) < changes < 1.1 * (1.0 - stays)
        assert np.mean([np.mean(own == ALL) for own in states]) == pytest.approx(
            prior.weight @ prior.share[:, :, ALL].sum(axis=1), abs=0.1
        )
    first = found[0]
    assert len(first.counts) == first.first + first.slots
    assert first.within.shape == (first.slots, 2)
    again = drawn_stretches(2, np.random.default_rng(3))
    assert np.array_equal(again[0].counts, first.counts)


def belief_of(folder):
    return all_predictions(belief_tapes(write_tidy(folder / "tidy")), 48)


def test_the_answer_has_a_row_for_each_level_and_worth(tmp_path):
    rng = np.random.default_rng(1)
    runs = rng.uniform(0.3, 0.9, (12, len(KINDS), len(WORTHS), 6))
    runs[..., 5] = runs[..., 3] > 0.5
    runs[:, :, 0, 4] = 1.1 * runs[:, :, 0, 0]
    found = EvidenceRuns(runs=runs, block=np.arange(12).astype(str), series=("a",))
    drawn = EvidenceRuns(runs=runs[:, :, :1], block=np.arange(12).astype(str), series=())
    answer = evidence_answer(found, drawn, belief_of(tmp_path), data="folder", seed=1, fast=False)
    assert {row["state"] for row in answer["availability"]} <= {"none", "part", "all"}
    assert answer["losses"][0]["slots"] == sum(row["slots"] for row in answer["availability"])
    for row, same in zip(answer["drawn_markets"], answer["levels"][: len(KINDS)], strict=True):
        assert (row["expected"], row["above_p90"]) == (same["expected"], same["above_p90"])
    assert len(answer["levels"]) == len(KINDS) * len(WORTHS)
    for row in answer["levels"][: len(KINDS)]:
        assert row["expected_less_paid"] == pytest.approx(1 / 1.1 - 1)
        assert row["interval"] == pytest.approx([1 / 1.1 - 1] * 2)
    assert sum(row["jobs"] for row in answer["reliability"]) == 12 * len(KINDS) * (len(WORTHS) - 1)
    text = rendered(evidence_report(answer))
    assert all(kind in text for kind in KINDS)
