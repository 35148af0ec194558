"""A job on the real clock: `act`, `progress` and turns as processes, slots of 3 minutes, a launcher of the user's own.

Bill and evidence are compared with the launcher's log.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import launcher
import numpy as np
import pytest

SLACKWATER = (sys.executable, "-c", "from slackwater.flows.cli import main; raise SystemExit(main())")
ZONE, TYPE = "us-west-2a", "p4d.24xlarge"
JOB = f"""
name = "live"
market = "aws/us-west-2/{ZONE}/{TYPE}"
deadline_in = "24m"
n_min = 1
n_max = 3
boot_minutes = 0.1
restart_minutes = 0.1
checkpoint_minutes = 0.2
on_demand_wait_minutes = 1
[workload]
amount = 0.3
unit = "instance_hours"
[throughput]
form = "linear"
[checkpoint]
resumable = true
"""
#: Seconds after the first launch at which the provider takes all spot, and at which `act` gets a signal.
LOSSES = (50, 130, 250)
SIGNALS = {90: signal.SIGTERM, 200: signal.SIGKILL}
#: Seconds of boot and restart of the group, and between two checkpoints.
READY, CHECKPOINT = 12.0, 10.0


def spot_prices(hours=80):
    """Return prices of a zone in the form of AWS, the newest some hours old."""
    rng, at = np.random.default_rng(1), datetime.now(UTC) - timedelta(hours=3)
    rows = [
        {
            "AvailabilityZone": ZONE,
            "InstanceType": TYPE,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{rng.uniform(9, 11):.4f}",
            "Timestamp": (at - timedelta(hours=3 * k)).isoformat(),
        }
        for k in range(hours // 3)
    ]
    return json.dumps({"SpotPriceHistory": rows})


class Live:
    """The folder of a user, a launcher, the training on its instances, and the processes."""

    def __init__(self, folder):
        self.folder, self.output = folder, folder / "output"
        self.cloud = folder / "cloud"
        for place in (self.output, self.cloud):
            place.mkdir()
        (folder / "prices.json").write_text(spot_prices())
        (folder / "job.toml").write_text(JOB)
        words = json.dumps([sys.executable, launcher.__file__, str(self.cloud), "1"])
        (folder / "slackwater.toml").write_text(
            'step_minutes = 3\nplanner = "last_value"\nmodels = ["last_value"]\nmeasured_origins = 2\nrisk_paths = 20\n'
            '[[drivers]]\nname = "mine"\nkind = "command"\n'
            f"options = {{ run = {words}, retry_seconds = 10 }}\n"
        )
        self.total, self.done, self.saved = 0.3 * 3600.0, 0.0, 0.0
        self.ids, self.ready, self.last, self.stored = set(), 0.0, time.time(), 0.0
        self.endings = []

    def run(self, *words, code=0):
        done = subprocess.run(
            [*SLACKWATER, *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    def start(self, *words):
        log = (self.folder / f"{words[0]}.log").open("a")
        return subprocess.Popen([*SLACKWATER, *words], cwd=self.folder, stdout=log, stderr=log)

    def start_act(self):
        return self.start("act", "live", "--every", "3s")

    def held(self):
        with launcher.state(self.cloud) as found:
            return found["held"]

    def train(self):
        """Let the training go on to the present second, and store a checkpoint when it is due."""
        now, held = time.time(), self.held()
        ids = {instance["id"] for instance in held}
        if ids - self.ids or not ids >= self.ids:  # the group starts again from its checkpoint
            self.done, self.ready = self.saved, now + READY
        self.ids = ids
        if now >= self.ready:
            self.done += len(held) * (now - max(self.last, self.ready))
        self.last = now
        if now - self.stored >= CHECKPOINT or self.done >= self.total:
            self.saved, self.stored = min(self.done, self.total), now
            state = {"global_step": int(self.saved), "max_steps": int(self.total)}
            part = self.output / "new"
            part.write_text(json.dumps(state))
            part.replace(self.output / "trainer_state.json")

    def live(self, *, most):
        """Run the job to its finish: a turn in each slot, losses and signals at their times."""
        act, progress = self.start_act(), self.start("progress", "live", "--watch", "output", "--every", "5s")
        begin, first, slot = time.time(), None, None
        losses, signals, turn = list(LOSSES), dict(SIGNALS), None
        while act.poll() is None and time.time() - begin < most:
            if (present := int(time.time() // 180)) != slot and (turn is None or turn.poll() is not None):
                slot, turn = present, self.start("run")
            first = first or (time.time() if self.held() else None)
            elapsed = 0.0 if first is None else time.time() - first
            if losses and elapsed >= losses[0] and launcher.lose_spot(self.cloud):
                losses.pop(0)
            if signals and elapsed >= min(signals):
                act.send_signal(number := signals.pop(min(signals)))
                self.endings.append((number, act.wait(60)))
                act = self.start_act()
            self.train()
            time.sleep(1.0)
        ended = act.poll()
        for process in (act, progress, turn):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
        assert ended == 0, ended
        return LOSSES[: len(LOSSES) - len(losses)]

    def instances(self):
        with launcher.state(self.cloud) as found:
            assert found["held"] == []
            return found["past"]


def hours(instance):
    ended, since = (datetime.fromisoformat(instance[key]) for key in ("ended", "since"))
    return (ended - since) / timedelta(hours=1)


@pytest.mark.slow  # 5 to 15 minutes of waiting
def test_a_job_on_the_real_clock_is_billed_as_its_launcher_billed_it(tmp_path):
    live = Live(tmp_path)
    live.run("ingest", "aws", "prices.json")
    live.run("job", "add", "job.toml")
    losses = live.live(most=24 * 60)
    log = live.instances()
    (shown,) = json.loads(live.run("bill", "live", "--json"))["jobs"]
    plan = json.loads(live.run("job", "show", "live", "--json"))
    decision = plan["decisions"][-1]
    rates = {"spot": decision["spot_usd_per_hour"], "on_demand": decision["on_demand_usd_per_hour"]}
    paid = sum(hours(instance) * rates[instance["kind"]] for instance in log)
    print(
        json.dumps({"launcher": paid, "bill": shown["paid_usd"], "instances": len(log), "ends": live.endings})
    )
    assert live.endings == [(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
    assert "Interrupted" in (tmp_path / "act.log").read_text()
    assert shown["paid_usd"] == pytest.approx(paid, abs=0.005)
    reports = plan["reports"]
    lost = [instance for instance in log if instance["end"] == "lost"]
    assert len(losses) >= 2
    assert sum(report.get("lost") or 0 for report in reports) == len(lost) > 0
    assert any("refused" in report["note"] for report in reports)
    assert reports[-1]["finished"] or any(report["finished"] for report in reports)
    assert any("decided again" in line for line in (tmp_path / "act.log").read_text().splitlines())
