"""The renter's path: every figure of the first hour equals hand-computed values from the synthetic prices."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from renters_path import DAYS, FIRST_STEPS, NOW, STEPS, TURNED, ZONES, outputs_on_page, spot_price, walk

GPUS, WORK, MOST, HOURS = 8, 320 / 8, 4, 0.5
#: AWS list price of p4d.24xlarge in us-east-1, USD an hour.
ON_DEMAND = 21.9576
#: A start or a change upwards takes 6 minutes of the slot of 30 in the slot model; in the world it
#: takes 2 minutes more until instances are up, in hours.
STARTED, LOST = 0.8, 8 / 60
CHEAPEST = min(ZONES, key=lambda zone: spot_price(zone, NOW))
SPOT = spot_price(CHEAPEST, NOW)
#: Zone after an instance was lost in the cheapest, at an earlier deadline: the next in price.
NEXT = sorted(ZONES, key=lambda zone: spot_price(zone, NOW))[1]


def slots_needed(work, *, started):
    """Return the slots that 4 instances take for some instance-hours; ``started``: they run already."""
    slots = 0
    while work > 1e-9:
        work -= MOST * HOURS * (1.0 if started or slots else STARTED)
        slots += 1
    return slots


SLOTS = slots_needed(WORK, started=False)
FULL = SLOTS * MOST * HOURS  # instance-hours of 4 instances in every slot
TRIMMED = FULL - (MOST - 1) * HOURS  # the last slot needs one instance
ON_DEMAND_ONLY = (WORK + MOST * LOST) * ON_DEMAND  # to the minute of the finish
HELD_AN_HOUR = MOST * (2 * HOURS - LOST)  # work of 4 instances by 13:00


def numbers(pattern, text):
    """Return the figures of the first match of a pattern."""
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return [float(group.replace(",", "")) for group in found.groups()]


def percent_less(usd):
    return round(100 * (1 - usd / ON_DEMAND_ONLY))


def check_ingest(text):
    times = DAYS * 4 + 1
    assert numbers(r"Read ([\d,]+) rows of (\d+) markets", text) == [len(ZONES) * times, len(ZONES)]
    for zone in ZONES:
        assert numbers(rf"{zone}/p4d\.24xlarge (\d+) ", text) == [times]


def check_markets(text):
    rows = re.findall(r"(us-east-1\w)/p4d.*?spot: (\d).*?cost: \$([\d.]+).*?spot price: \$([\d.]+)", text)
    assert [row[0] for row in rows] == sorted(ZONES, key=lambda zone: spot_price(zone, NOW))
    assert [float(row[3]) for row in rows] == [spot_price(row[0], NOW) for row in rows]
    assert int(rows[0][1]) == MOST
    assert float(rows[0][2]) == 0.0
    for zone, spot, extra, _ in rows[1:]:
        # At least the higher price of the slot for the instances that would start there.
        assert float(extra) > (spot_price(zone, NOW) - SPOT) * HOURS * int(spot)
    assert set(re.findall(r"on-demand price: \$([\d.]+)", text)) == {str(ON_DEMAND)}
    # Of a first instance, in the mean of the measured markets.
    assert set(re.findall(r"chance of spot next slot: (\d+) %", text)) == {"67"}
    assert text.count("availability not observed, assumed from 32 measured markets") == len(ZONES)


def check_plan(text):
    assert numbers(r"Run (\d+) spot instances \((\d+) GPUs\) in us-east-1b", text) == [MOST, MOST * GPUS]
    assert f"in {CHEAPEST} until 12:30 UTC" in text
    usd, least, most, less, alone = numbers(
        r"about \$(\d+) \(\$(\d+) to \$(\d+) in 8 of 10 cases\), (\d+) % less than on-demand only, \$(\d+);",
        text,
    )
    # At the lower end spot is never lost; prices may change, and the last instances restart.
    assert abs(least - (WORK + MOST * LOST) * SPOT) <= 4
    assert least < usd < most
    assert abs(less - percent_less(usd)) <= 1
    assert alone == round(ON_DEMAND_ONLY)
    hour, minute = numbers(rf"Expected finish {NOW:%Y-%m-%d} (\d+):(\d+) UTC", text)
    finish = NOW + timedelta(hours=WORK / MOST + LOST)
    assert finish.hour * 60 + finish.minute <= hour * 60 + minute < 24 * 60
    told = (
        "0 % even if all spot is lost, assuming that decisions are followed, the job saves at the notice of a loss "
        "and on-demand is granted at once"
    )
    assert told in text
    assert "320 GPU-hours = 40 instance-hours" in text


def check_add(text):
    assert numbers(r"deadline slots: (\d+)", text) == [12 / HOURS]
    assert numbers(r"sizes: 1 to (\d+) x p4d.24xlarge, 8 to (\d+) GPUs", text) == [MOST, MOST * GPUS]


def check_run(text, *, until="12:30", spot=MOST, zone=CHEAPEST):
    assert text.startswith(f"llama-sft: Run {spot} spot instances ({spot * GPUS} GPUs) in {zone} ")
    assert f"until 2026-11-25 {until} UTC" in text
    usd, share = numbers(r"Cost about \$(\d+) \(.*?\), ([\d.]+) % less", text)
    # Least: all the work without wasted time. Most: on-demand alone.
    assert WORK * SPOT < usd < ON_DEMAND_ONLY
    assert abs(share - percent_less(usd)) <= 1
    if "on-demand only" in text:  # the page repeats only the beginning of a decision
        assert numbers(r"less than on-demand only, \$(\d+)", text) == [round(ON_DEMAND_ONLY)]
    if "Why: " in text:  # the page has the reason where it is new
        assert numbers(r"costs (0\.\d+) of on-demand", text) == [round(spot_price(zone, NOW) / ON_DEMAND, 2)]


def check_later(text):
    assert numbers(r"Read (\d+) rows of (\d+) markets", text) == [len(ZONES), len(ZONES)]


def check_lost(text):
    assert numbers(r"Run (\d+) spot instances \((\d+) GPUs\)", text) == [MOST, MOST * GPUS]
    done, share = numbers(r"progress ([\d.]+) of 320 \S+ \(([\d.]+) %\)", text)
    assert done == pytest.approx(HELD_AN_HOUR * GPUS, abs=0.006)
    assert share == pytest.approx(100 * HELD_AN_HOUR / WORK, abs=0.06)
    usd, less = numbers(r"about \$(\d+) .*?, (\d+) % less", text)
    paid = 2 * MOST * HOURS * SPOT
    assert paid + (WORK - HELD_AN_HOUR) * SPOT < usd < ON_DEMAND_ONLY
    assert abs(less - percent_less(usd)) <= 1


def check_early(text):
    # 3 instances are running: 4 of them begin with a change upwards.
    rest = WORK - HELD_AN_HOUR
    needed = rest / MOST + (1.0 - STARTED) * HOURS
    hours = (NOW.replace(hour=22) - NOW.replace(hour=13)).total_seconds() / 3600
    told = numbers(r"need ([\d.]+) h for the rest, (\d+) min more than the ([\d.]+) h left", text)
    assert told == [pytest.approx(needed, abs=0.051), pytest.approx(60 * (needed - hours), abs=1.01), hours]
    would_do = NOW.replace(hour=13) + timedelta(hours=slots_needed(rest, started=False) * HOURS)
    assert f"a deadline of {would_do:%Y-%m-%d %H:%M} UTC would do" in text
    assert numbers(r"(\d+) instances \((\d+) GPUs\) or", text) == [5, 40]


def check_bill(text):
    known = 2 * MOST * HOURS * SPOT
    for_work = HELD_AN_HOUR / WORK * ON_DEMAND_ONLY
    assert numbers(r"Paid \$([\d.]+)", text) == [known + 3 * HOURS * SPOT]
    usd, saved, share = numbers(r"llama-sft [\d.]+ ([\d.]+) ([\d.]+) (\d+) %", text)
    assert usd == pytest.approx(for_work, abs=0.01)
    assert saved == pytest.approx(for_work - known, abs=0.01)
    assert share == round(100 * (1 - known / for_work))


def check_backtest(text):
    starts = [NOW.replace(hour=0) - timedelta(hours=72 * k) for k in range(10)]
    prices = [min(spot_price(zone, start) for zone in ZONES) for start in starts]
    hours = (NOW.replace(hour=0) + timedelta(days=1) - NOW).total_seconds() / 3600 - HOURS
    assert all(not start < TURNED < start + timedelta(hours=hours) for start in starts)
    mean = sum(prices) / len(prices)
    assert numbers(r"(\d+) starts from", text) == [len(starts)]
    assert numbers(r"([\d.]+) h to each deadline", text) == [hours]
    for policy in ("MeanField", "Greedy"):
        usd, worst, saved = numbers(rf"{policy} ([\d.]+) ([\d.]+) (\d+) %", text)
        # The work, boot and restart of 4 instances, and at most an instance-hour of changes at the end.
        assert (WORK + MOST * LOST) * mean - 0.01 < usd < (WORK + MOST * LOST + 1) * mean
        assert (WORK + MOST * LOST) * max(prices) - 0.01 < worst < (WORK + MOST * LOST + 1) * max(prices)
        assert abs(saved - percent_less(usd)) <= 1
    assert numbers(r"optimum in the slot model ([\d.]+)", text) == [pytest.approx(TRIMMED * mean, abs=0.006)]


CHECKS = {
    "ingest": check_ingest,
    "markets": check_markets,
    "plan": check_plan,
    "add": check_add,
    "run": check_run,
    "half": lambda text: check_run(text, until="13:00"),
    "later": check_later,
    "report": lambda text: numbers(r"llama-sft .*? (\d) no", text) == [3],
    "lost": check_lost,
    "early": check_early,
    "moved": lambda text: re.search(r"22:00 UTC 2026-11-25 23:00 UTC", text) is not None,
    "decided": lambda text: check_run(text, until="13:30", zone=NEXT),
    "bill": check_bill,
    "backtest": check_backtest,
}


def check(name, output):
    assert CHECKS[name](" ".join(output.split())) in (None, True), output


def test_the_first_answers_from_an_empty_folder(tmp_path):
    found = walk(tmp_path, FIRST_STEPS)
    for name, output in found.items():
        check(name, output)
        assert all(len(line) <= 80 for line in output.splitlines()), output


@pytest.mark.slow
def test_the_first_hour_from_an_empty_folder(tmp_path):
    for name, output in walk(tmp_path).items():
        check(name, output)


def test_the_figures_of_the_page_are_those_computed_by_hand():
    found = dict(outputs_on_page())
    assert list(found) == [step.name for step in STEPS]
    for name, output in found.items():
        check(name, output)
