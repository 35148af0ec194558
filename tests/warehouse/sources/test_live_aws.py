"""AWS sources: tested with moto's server, and with a server of EC2's XML for features that moto lacks."""

import json
import os
import stat
import sys

import pandas as pd
import pytest
from live_fetching import items, rows_of
from loopback import AT, Ec2, Reply, ec2_error, ec2_xml, price_history, serve
from moto_kit import moto_url  # noqa: F401 - a fixture

from slackwater.warehouse.errors import FetchError, SettingsError
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.contract import PartFailed
from slackwater.warehouse.sources.live.transport import Transport


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE123456789")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-abcdefghijklmnop")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def moto_items(options):
    """Fetch from moto, whose first answer loads all of EC2, within the time limit of the product."""
    return items("aws-spot", options, transport=Transport(seed=1))


@pytest.mark.slow
def test_spot_prices_of_moto_in_two_regions(moto_url):  # noqa: F811
    options = {
        "endpoint_url": moto_url,
        "regions": ["us-east-1", "eu-west-1"],
        "instance_types": ["g4dn.xlarge"],
    }
    rows = rows_of(moto_items(options), "price")
    assert {row["region"] for row in rows} == {"us-east-1", "eu-west-1"}
    assert all(row["zone"].startswith(row["region"]) for row in rows)
    assert {row["instance_type"] for row in rows} == {"g4dn.xlarge"}
    assert all(float(row["price_usd"]) > 0 for row in rows)


@pytest.mark.slow
def test_the_regions_of_an_account_are_asked_for(moto_url):  # noqa: F811
    found = moto_items({"endpoint_url": moto_url, "instance_types": ["p4d.24xlarge"]})
    regions = {item.part for item in found}
    assert len(regions) >= 10
    assert {"us-east-1", "eu-central-1"} <= regions
    assert not any(isinstance(item, PartFailed) for item in found)


def test_rows_are_text_as_found_newest_first():
    history = price_history("us-east-1", 2, start=AT.floor("D"))
    history.append(("us-east-1a", "p3.2xlarge", "Linux/UNIX", "dear", "not a time"))
    with serve(Ec2({"us-east-1": history})) as server:
        found = items("aws-spot", {"endpoint_url": server.url, "regions": ["us-east-1"]})
    rows = rows_of(found, "price")
    assert [(row["price_usd"], row["observed_at"]) for row in rows][:2] == [
        ("dear", "not a time"),
        ("0.9280", "2026-01-05T01:00:00.000Z"),
    ]
    assert rows[1]["product"] == "Linux/UNIX"
    assert (rows[0]["line"], rows[-1]["line"]) == (1, 5)


def test_garbage_instead_of_xml_fails_the_region_only():
    ec2 = Ec2({"us-east-1": price_history("us-east-1", 1, start=AT.floor("D")), "us-west-2": []})

    def answer(seen):
        region = seen.headers["authorization"].split("/")[2]
        return (
            Reply("{not xml", headers={"Content-Type": "text/html"}) if region == "us-west-2" else ec2(seen)
        )

    with serve(answer) as server:
        found = items("aws-spot", {"endpoint_url": server.url, "regions": ["us-west-2", "us-east-1"]})
    assert isinstance(found[0], PartFailed)
    assert "something unreadable" in found[0].reason
    assert len(rows_of(found, "price")) == 2


def test_a_page_of_a_proxy_is_no_answer_without_rows():
    """boto parses any XML, so a sign-in page looks like an empty and complete history."""
    page = Reply("<html><body>Sign in</body></html>", headers={"Content-Type": "text/html"})
    with serve(Ec2({"us-east-1": price_history("us-east-1", 2, start=AT - pd.Timedelta("3h"))})) as server:
        server.faults[1] = page
        found = items("aws-spot", {"endpoint_url": server.url, "regions": ["us-east-1"]})
    assert len(rows_of(found, "price")) == 4
    with serve(lambda _: page) as server:
        (failed,) = items("aws-spot", {"endpoint_url": server.url, "regions": ["us-east-1"]})
    assert isinstance(failed, PartFailed)
    assert "not its own" in failed.reason


def test_a_profile_that_is_not_there_is_told():
    with pytest.raises(FetchError, match=r"AWS credentials: .*moon"):
        items("aws-spot", {"profile": "moon", "regions": ["us-east-1"]})


def test_credentials_of_a_profile_in_the_shared_file(monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "credentials").write_text(
        "[team]\naws_access_key_id = AKIATEAM000000000000\naws_secret_access_key = team-secret-0123456789\n"
    )
    with serve(Ec2({"us-east-1": []})) as server:
        items("aws-spot", {"profile": "team", "endpoint_url": server.url, "regions": ["us-east-1"]})
        assert "Credential=AKIATEAM000000000000/" in server.seen[0].headers["authorization"]


def test_without_boto3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingsError, match=r"slackwater\[aws\]"):
        items("aws-spot", {"regions": ["us-east-1"]})


def scores(*rows, token=None):
    inner = "".join(
        f"<item><region>{region}</region>"
        + (f"<availabilityZoneId>{zone}</availabilityZoneId>" if zone else "")
        + f"<score>{score}</score></item>"
        for region, zone, score in rows
    )
    set_ = f"<spotPlacementScoreSet>{inner}</spotPlacementScoreSet>"
    return ec2_xml("GetSpotPlacementScores", set_, token)


TYPES = ["p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"]


def test_placement_scores_are_rows_of_their_own_kind():
    def answer(seen):
        if seen.form.get("NextToken") == "t2":
            return scores(("us-west-2", "", 1))
        return scores(("us-east-1", "use1-az1", 9), ("us-east-1", "use1-az2", 3), token="t2")

    with serve(answer) as server:
        options = {"endpoint_url": server.url, "instance_types": TYPES, "target_capacity": 4, "zones": True}
        found = items("aws-placement", options)
        asked = server.seen[0].form
    assert asked["TargetCapacity"] == "4"
    assert asked["SingleAvailabilityZone"] == "true"
    assert [asked[f"InstanceType.{number}"] for number in (1, 2, 3)] == TYPES
    rows = rows_of(found, "availability")
    assert [(row["region"], row["zone"], row["available"]) for row in rows] == [
        ("us-east-1", "use1-az1", 9),
        ("us-east-1", "use1-az2", 3),
        ("us-west-2", "all", 1),
    ]
    assert {(row["kind"], row["capacity"], row["instance_type"]) for row in rows} == {
        ("score", 10, "+".join(TYPES))
    }
    assert {row["observed_at"] for row in rows} == {AT.to_pydatetime()}


def test_placement_says_what_its_scores_are():
    source = LIVE_SOURCES["aws-placement"]
    assert source.assumptions({"instance_types": TYPES, "target_capacity": 8}) == (
        "placement score (1 to 10) for 8 instances, not a count of instances",
    )
    assert "always low" in " ".join(source.assumptions({"instance_types": TYPES[:1]}))
    with pytest.raises(SettingsError, match="at least one instance type"):
        source.check({})
    with pytest.raises(SettingsError, match="at most 10 regions"):
        source.check({"instance_types": TYPES, "regions": [f"r{number}" for number in range(11)]})


def test_placement_refused():
    with serve(lambda seen: ec2_error("MaxConfigLimitExceeded", 400, "too many configurations")) as server:
        with pytest.raises(FetchError, match="MaxConfigLimitExceeded too many configurations"):
            items("aws-placement", {"endpoint_url": server.url, "instance_types": TYPES})
        assert len(server.seen) == 1


MARKET = "own/r1/z1/h100"


def probe(command, **others):
    return {"command": [sys.executable, "-c", command], "markets": [MARKET], "timeout_seconds": 20} | others


def test_a_probe_prints_a_count():
    found = items(
        "probe", probe("import sys; print(3 if sys.argv[-1] == 'own/r1/z1/h100' else 0)", capacity=8)
    )
    (one,) = rows_of(found, "availability")
    assert (one["available"], one["capacity"], one["kind"], one["gap_seconds"]) == (3, 8, "probe", 3600)
    assert (one["provider"], one["region"], one["zone"], one["instance_type"]) == ("own", "r1", "z1", "h100")
    assert one["observed_at"] == AT.to_pydatetime()
    assert rows_of(found, "price") == []


def test_a_probe_is_asked_in_json_and_may_tell_more():
    code = (
        "import json, sys; asked = json.load(sys.stdin); assert asked['at'] == '2026-01-05T12:00:00+00:00';"
        "print(json.dumps({'available': 2, 'capacity': 4, 'price_usd': 1.5, 'on_demand_usd': 3}))"
    )
    found = items("probe", probe(code, kind="held"))
    assert rows_of(found, "availability")[0]["kind"] == "held"
    (price,) = rows_of(found, "price")
    assert (price["price_usd"], price["on_demand_usd"]) == ("1.5", 3)


def test_a_probe_runs_without_a_shell(tmp_path):
    canary = tmp_path / "canary"
    program = tmp_path / "count"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(len(sys.argv))\n")
    os.chmod(program, stat.S_IRWXU)
    found = items("probe", {"command": [str(program), f"; touch {canary}", "$(id)"], "markets": [MARKET]})
    assert rows_of(found, "availability")[0]["available"] == 4
    assert not canary.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('many')", "probe printed 'many'"),
        ("print(-1)", "probe said '-1' instances"),
        ("print(2.5)", "probe said '2.5' instances"),
        ("print('true')", "instances"),
        ("print('{\"capacity\": 3}')", "probe said 'None' instances"),
        ('print(\'{"available": 1, "secret_field": 2}\')', "probe said 'secret_field'"),
        ("print(10 ** 30)", "instances"),
        ("pass", "probe printed ''"),
        ("import sys; sys.exit('no quota left')", "exit code 1: no quota left"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("import time; time.sleep(60)", "did not end in 0.7 s"),
        ("import os, time; os.fork(); time.sleep(60)", "did not end in 0.7 s"),
        ("while True: print('y' * 10000)", "wrote more than 1,048,576 bytes"),
    ],
)
def test_a_probe_that_fails_stores_nothing_and_says_why(code, words):
    limit = 0.7 if "sleep" in code else 20
    (failed,) = items("probe", probe(code, timeout_seconds=limit))
    assert isinstance(failed, PartFailed)
    assert words in failed.reason


def test_a_probe_that_fails_for_one_market_leaves_the_others():
    code = "import sys; sys.exit(1) if 'z1' in sys.argv[-1] else print(1)"
    found = items("probe", probe(code, markets=[MARKET, "own/r1/z2/h100"]))
    assert [type(item).__name__ for item in found] == ["PartFailed", "FetchedPage"]


def test_what_a_probe_says_of_a_secret_is_not_told(monkeypatch):
    monkeypatch.setenv("CLOUD_TOKEN", "cloud-token-0123456789")
    (failed,) = items("probe", probe("import os, sys; sys.exit('denied: ' + os.environ['CLOUD_TOKEN'])"))
    assert failed.reason.startswith("probe ")
    assert "denied: ***" in failed.reason
    assert "cloud-token" not in failed.reason


def test_a_probe_may_be_a_function(tmp_path, monkeypatch):
    (tmp_path / "my_probe.py").write_text(
        "def count(market, at):\n    print('noise')\n    return {'available': len(market), 'capacity': 99}\n"
        "def fails(market, at):\n    raise RuntimeError('quota')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = items("probe", {"entry": "my_probe:count", "markets": [MARKET]})
    assert rows_of(found, "availability")[0]["available"] == len(MARKET)
    (failed,) = items("probe", {"entry": "my_probe:fails", "markets": [MARKET]})
    assert "RuntimeError: quota" in failed.reason
    (failed,) = items("probe", {"entry": "my_probe:nothing", "markets": [MARKET]})
    assert "no probe my_probe:nothing" in failed.reason


def test_a_program_that_is_not_there():
    (failed,) = items("probe", {"command": ["/no/such/program"], "markets": [MARKET]})
    assert "cannot be started: No such file or directory" in failed.reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"markets": [MARKET]}, "a command or an entry"),
        ({"command": ["a"], "entry": "a:b", "markets": [MARKET]}, "a command or an entry"),
        ({"command": "a b", "markets": [MARKET]}, "a list: the program"),
        ({"entry": "os.system('x')", "markets": [MARKET]}, "module:function"),
        ({"command": ["a"], "markets": ["here"]}, "provider/region/zone/instance_type"),
        ({"command": ["a"], "markets": []}, "at least one market"),
        ({"command": ["a"], "markets": [MARKET], "timeout_seconds": 0}, "a number from 0.1"),
    ],
)
def test_probe_options_that_cannot_be_used(options, words):
    with pytest.raises(SettingsError, match=words):
        LIVE_SOURCES["probe"].check(json.loads(json.dumps(options)))
