"""Alarms sent to people: each is raised when it should be, once, and reaches Slack, a webhook, mail or a command."""

import json
import socketserver
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest
from make import make_request

from slackwater.flows.config import ALARM_KINDS, AlarmSettings, Alert, Settings, read_settings
from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.ledger.endings import ending_of, endings_of, missed_jobs, reported_outcomes
from slackwater.flows.ledger.jobs import StoredJob, save_jobs, stored_jobs
from slackwater.flows.ledger.reports import Report
from slackwater.flows.monitoring import alarms
from slackwater.flows.monitoring.alarms import Alarm, alarms_of, settle_alarms, standing_alarms
from slackwater.flows.monitoring.alerts import headline, payload, send_alerts
from slackwater.flows.monitoring.job_alarms import CHECKS, JobFacts
from slackwater.flows.show.formats import utc
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.issued import write_rows
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta(minutes=30)
START = pd.Timestamp("2026-03-10T06:00Z")
DEADLINE = START + pd.Timedelta(hours=10)
NOW = START + pd.Timedelta(hours=6)


def job(name="lora", **more):
    terms = {"deadline_in": "10h", "n_max": 4, "workload": {"amount": 20, "unit": "slots"}, **more}
    request = make_request(name, at=START, market="lab/r/z/x", source="lab", **terms)
    return StoredJob(request=request, origin="user", step=STEP, created_at=START)


def decision(slot=NOW, **more):
    return {
        "slot": slot.isoformat(), "market": "lab/r/z/x", "source": "lab", "late_probability": 0.02, "shortfall": None,
        "progress_share": 0.5, "expected_finish": (DEADLINE - STEP).isoformat(),
    } | more  # fmt: skip


def report(at=NOW, **more):
    return Report(job="lora", reported_at=at, known_at=at, **more)


def facts(**more):
    usual = JobFacts(
        job=job(),
        at=NOW,
        rules=AlarmSettings(),
        decisions=[decision()],
        reports=[],
        undelivered=[],
        newest=NOW,
    )
    return replace(usual, **more)


LATER = DEADLINE + STEP
RINGING = [
    ("job at risk", {"decisions": [decision(late_probability=0.3)]}, "UTC is 30 %"),
    ("job infeasible", {"decisions": [decision(shortfall="cannot be done by noon")]}, "cannot be done by noon"),
    ("job missed", {"at": LATER, "reports": [report(DEADLINE, progress=1.2)]}, "missed: 6 % done at its deadline"),
    ("no report", {"reports": [report(START + STEP, progress=1.0)]}, "5.5 h ago"),
    ("decision not delivered", {"undelivered": [{"sink": "hook", "slot": NOW, "reason": "answered 500"}]}, "answered 500"),
    ("budget", {"job": job(budget_usd=100.0), "costs": [(START, 30.0), (START + STEP, 51.0)]}, "$81.00 of the budget of $100.00"),
    ("market gone", {"newest": NOW - pd.Timedelta(hours=40)}, "not been observed for 40 h"),
    ("market gone", {"newest": None}, "not been observed never"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wrong", "words"), RINGING[:-1])
def test_each_rings_and_alone(kind, wrong, words):
    rung = {name: list(check(facts(**wrong))) for name, check in CHECKS.items()}
    assert [name for name, found in rung.items() if found] == [kind]
    assert words in rung[kind][0].text


@pytest.mark.parametrize(
    "quiet",
    [
        {},
        {"decisions": []},
        {"reports": [report(NOW - STEP, progress=3.0)]},
        {"at": LATER, "reports": [report(DEADLINE, finished=True)]},
        {"at": LATER, "reports": [report(DEADLINE, progress=20.0)]},
        {"at": LATER + pd.Timedelta(days=3), "reports": [report(DEADLINE, progress=1.0)]},
        {"newest": NOW - pd.Timedelta(hours=30)},
        {"job": job(budget_usd=100.0), "costs": [(START, 30.0), (START + STEP, 19.9)]},
    ],
)
def test_nothing_rings_without_a_reason(quiet):
    assert not [one for check in CHECKS.values() for one in check(facts(**quiet))]


def test_every_kind_has_a_check_and_every_check_a_kind():
    """A kind without a check would be described and never raised; a check without a kind has no severity."""
    assert {*CHECKS, *alarms.CHECKS} == set(ALARM_KINDS)
    assert not {*CHECKS} & {*alarms.CHECKS}


@pytest.mark.parametrize(
    ("decisions", "reports", "words"),
    [
        ([], [], "missed: 0 % done at its deadline by its decisions; nobody reported it"),
        ([decision(expected_finish=(DEADLINE + 3 * STEP).isoformat(), progress_share=0.61)], [], "missed: 61 % done at its "
         "deadline by its decisions; nobody reported it"),
        ([decision(DEADLINE - 2 * STEP)], [], "finished by its decisions; nobody reported it"),
        ([decision()], [], "ended; nobody reported whether it finished"),  # nothing was decided in its last hours
        ([decision()], [report(DEADLINE, finished=True)], "finished"),
        ([decision()], [report(DEADLINE, progress=10.0)], "missed: 50 % done at its deadline"),
        ([decision(DEADLINE - 2 * STEP)], [report(DEADLINE - STEP, progress=19.0)],
         "finished by its decisions; nobody reported it"),
        ([decision()], [report(DEADLINE - STEP, progress=20.0)], "finished"),
        ([decision()], [report(DEADLINE + STEP, finished=True)], "finished"),
        ([decision()], [report(DEADLINE, progress=10.0), report(DEADLINE + 6 * STEP, finished=True)],
         f"late: finished by {utc(DEADLINE + 6 * STEP)}, after its deadline"),
        ([decision()], [report(DEADLINE - STEP, progress=8.0), report(DEADLINE + 6 * STEP, progress=15.0)],
         "missed: 40 % done at its deadline"),
        ([decision()], [report(DEADLINE - STEP, progress=8.0), report(DEADLINE - STEP / 2, withdrawn=True)],
         f"withdrawn by its owner at {utc(DEADLINE - STEP / 2)} with 40 % done"),
    ],
)  # fmt: skip
def test_how_a_job_ended_in_words(decisions, reports, words):
    assert ending_of(job(), decisions, reports).words() == words


@pytest.mark.parametrize(
    ("value", "on_demand", "expected_finish", "state"),
    [
        (50.0, 0, None, "given up"),
        (None, 0, None, "missed"),  # a hard deadline is never given up
        (50.0, 2, None, "missed"),
        (50.0, 0, (DEADLINE + STEP).isoformat(), "missed"),  # it waits
    ],
)
def test_a_job_that_was_not_worth_finishing_is_given_up_not_missed(value, on_demand, expected_finish, state):
    last = decision(on_demand=on_demand, spot=0, expected_finish=expected_finish, progress_share=0.2)
    asked = job(value_usd=value)
    for reports in ([], [report(DEADLINE, progress=4.0)]):
        found = ending_of(asked, [last], reports)
        assert (found.state, found.share, found.is_missed) == (state, 0.2, state == "missed")
        assert found.words().startswith(f"{state}")
    alarm = list(CHECKS["job missed"](facts(job=asked, at=LATER, decisions=[last])))
    assert bool(alarm) is (state == "missed")


def test_a_job_over_when_added_was_only_replayed():
    found = ending_of(replace(job(), created_at=DEADLINE + STEP), [], [])
    assert (found.state, found.is_missed, found.words()) == ("replayed", False, "over when added")


@pytest.fixture
def stored():
    """Yield a warehouse with a job whose newest decision has a probability of 0.4 of missing the deadline."""
    with open_store(":memory:") as store:
        save_jobs(store, [job().request], origin="user", at=START, step=STEP)
        row = decision(late_probability=0.4) | {
            "job": "lora", "policy": "UP", "on_demand": 1, "spot": 0, "reason": "because", "run": "r",
        }  # fmt: skip
        save_decisions(store, [("r", row)])
        yield store


def look(store, at=NOW):
    settle_alarms(store, alarms_of(store, Settings(), [], at=at), at=at)
    return standing_alarms(store, at=at)


def test_an_alarm_of_a_job_is_kept_and_cleared(stored):
    kinds = {one.kind: one for one in look(stored)}
    assert set(kinds) == {"job at risk", "market gone"}
    assert kinds["job at risk"].subject == "job lora"
    assert kinds["job at risk"].severity == "serious"
    write_rows(stored, "reports", [{
        "job": "lora", "reported_at": NOW, "known_at": NOW, "revision": 0, "progress": None, "on_demand": None, "spot": None,
        "finished": True, "note": "", "market": None,
    }])  # fmt: skip
    assert look(stored, NOW + STEP) == []


def test_real_outcomes_are_of_jobs_that_were_decided_and_reported(stored):
    """Replays are no real outcomes; a job counts for the policy that decided most of its slots."""
    assert reported_outcomes(stored).sentence().startswith("No real outcome yet")
    save_decisions(stored, [("r", decision(slot=NOW + k * STEP) | {
        "job": "lora", "policy": policy, "on_demand": 1, "spot": 0, "reason": "because", "run": "r",
    }) for k, policy in ((1, "MSU"), (2, "MSU"))])  # fmt: skip
    scored = {
        "job": "lora", "policy": "UP", "scored_at": LATER, "utility_usd": 0.0, "value_usd": 0.0, "cost_usd": 1.0,
        "termination_cost_usd": 0.0, "on_time": True, "finished_slot": 1, "finish_slots": 1.0, "spot_share": 0.0,
        "progress": 1.0, "utility_normalised": 0.0, "hindsight_low_usd": 0.0, "hindsight_high_usd": 0.0,
        "allocations": "[]", "details": "{}",
    }  # fmt: skip
    write_rows(stored, "outcomes", pd.DataFrame([scored]))
    found = reported_outcomes(stored)
    assert (found.by_policy, found.unreported) == ({}, 1)
    assert "1 ended without a report" in found.sentence()
    write_rows(stored, "reports", [{
        "job": "lora", "reported_at": DEADLINE, "known_at": DEADLINE, "revision": 0, "progress": 1.2, "on_demand": None,
        "spot": None, "finished": False, "note": "", "market": None,
    }])  # fmt: skip
    found = reported_outcomes(stored)
    assert (found.by_policy, found.unreported) == ({"MSU": [False]}, 0)
    (note,) = missed_jobs(endings_of(stored, stored_jobs(stored)))
    assert note == "MISSED: job lora missed: 6 % done at its deadline."
    assert endings_of(stored, [replace(one, origin="example") for one in stored_jobs(stored)]) == {}
    assert found.sentence() == "Real outcomes: 0 of 1 decided job was on time, as reported."


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.received, server.answers = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def alert(**more):
    return Alert.model_validate({"name": "team", "kind": "slack", "address_env": "HOOK"} | more)


def told(store, alerts, alarms, environment, at=NOW):
    said = []
    done = send_alerts(store, alerts, alarms, at=at, say=said.append, environment=environment)
    return [one.status for one in done], said


@pytest.mark.parametrize("kind", ["slack", "webhook"])
def test_an_alarm_is_sent_once(stored, web, kind):
    alarms = look(stored)
    environment = {"HOOK": f"http://127.0.0.1:{web.server_port}/x"}
    assert told(stored, [alert(kind=kind)], alarms, environment) == (["sent"] * 2, [])
    assert told(stored, [alert(kind=kind)], look(stored, NOW + STEP), environment, NOW + STEP) == ([], [])
    first = web.received[0]
    if kind == "slack":
        assert first == {"text": f"slackwater, serious: {headline(alarms[0])}"}
    else:
        assert first == payload(alarms[0])


def test_what_fails_is_said_and_sent_at_the_next_look(stored, web):
    alarms = look(stored)[:1]
    web.answers = [500]
    environment = {"HOOK": f"http://127.0.0.1:{web.server_port}/x"}
    assert told(stored, [alert()], alarms, environment) == (
        ["failed"], ["alert team was not sent: answered 500"],
    )  # fmt: skip
    assert told(stored, [alert()], alarms, environment, NOW + STEP)[0] == ["sent"]


def test_an_address_that_is_missing_or_none_stops_nothing_and_stays_secret(stored):
    alarms = look(stored)[:1]
    _, said = told(stored, [alert()], alarms, {})
    assert said == ["alert team was not sent: environment variable HOOK is not set"]
    _, said = told(stored, [alert()], alarms, {"HOOK": "secret-token"})
    assert said == ["alert team was not sent: environment variable HOOK is not a web address"]


def test_slack_signs_in_a_text_of_others_are_no_links(stored, web):
    strange = Alarm(
        kind="no report", subject="job <!channel>", severity="serious", since=NOW, text="a & b", raised_at=NOW
    )
    told(stored, [alert()], [strange], {"HOOK": f"http://127.0.0.1:{web.server_port}/x"})
    assert web.received[0]["text"] == "slackwater, serious: job &lt;!channel&gt;: a &amp; b"


def test_a_command_gets_the_alarm_as_json(stored, tmp_path):
    out = tmp_path / "alarm.json"
    alarms = look(stored)[:1]
    command = ["/bin/sh", "-c", f"cat > {out}"]
    asked = alert(kind="command", address_env=None, command=command)
    assert told(stored, [asked], alarms, {"PATH": "/bin:/usr/bin"})[0] == ["sent"]
    assert json.loads(out.read_text()) == payload(alarms[0])
    failing = alert(name="other", kind="command", address_env=None, command=["/bin/false"])
    assert told(stored, [failing], alarms, {})[1] == ["alert other was not sent: /bin/false ended with 1"]


class Mailbox(socketserver.StreamRequestHandler):
    """Minimal SMTP server that stores the received message."""

    def handle(self):
        self.wfile.write(b"220 hello\r\n")
        data = None
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            if data is not None:
                if line == ".":
                    self.server.received.append("\n".join(data))
                    data = None
                    self.wfile.write(b"250 ok\r\n")
                else:
                    data.append(line)
            elif line.upper() == "DATA":
                data = []
                self.wfile.write(b"354 go on\r\n")
            elif line.upper() == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


def test_mail_goes_through_the_server_that_is_named(stored):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        server.received = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {"MAIL": "me@example.com", "SMTP_URL": f"smtp://127.0.0.1:{server.server_address[1]}"}
        asked = alert(kind="email", address_env="MAIL")
        assert told(stored, [asked], look(stored)[:1], environment) == (["sent"], [])
        server.shutdown()
    assert "Subject: slackwater: job at risk: job lora" in server.received[0]
    assert "To: me@example.com" in server.received[0]


def test_only_the_kinds_and_the_severity_that_are_wanted(stored, web):
    alarms = [replace(one, severity="warning") for one in look(stored)]
    environment = {"HOOK": f"http://127.0.0.1:{web.server_port}/x"}
    assert told(stored, [alert()], alarms, environment)[0] == []
    assert len(told(stored, [alert(severity="all")], alarms, environment)[0]) == 2
    named = alert(name="other", only=["market gone"])
    assert len(told(stored, [named], alarms, environment)[0]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "a"\nkind = "slack"', "needs address_env"),
        ('name = "a"\nkind = "command"', "needs command"),
        ('name = "a"\nkind = "slack"\naddress_env = "X"\nonly = ["nothing"]', "unknown alarm 'nothing'"),
        ('name = "a"\nkind = "pigeon"\naddress_env = "X"', "kind"),
    ],
)
def test_a_wrong_alert_is_refused_with_words(tmp_path, text, words):
    (tmp_path / "s.toml").write_text(f"[[alerts]]\n{text}\n")
    with pytest.raises(SettingsError, match=words):
        read_settings(tmp_path / "s.toml")
