"""The examples of examples/deploy: what they start exists, and they are whole."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from command_kit import options_of
from kueue_kit import check_queue

from slackwater.flows.acting.drivers.quotas import QuotaOptions, check_quotas_limit, has_resource

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
KUEUE = list(yaml.safe_load_all((DEPLOY / "kueue.yaml").read_text(encoding="utf-8")))
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SERVICE = (DEPLOY / "slackwater.service").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return every command of Slackwater that an example starts."""
    found = [one["command"] for one in COMPOSE["services"].values() if "command" in one]
    (deployment,) = [one for one in KUBERNETES if one["kind"] == "Deployment"]
    found += [one["args"] for one in deployment["spec"]["template"]["spec"]["containers"]]
    found += [yaml.safe_load(text) for text in re.findall(r"^CMD (.*)$", DOCKERFILE, flags=re.MULTILINE)]
    found += [shlex.split(text) for text in re.findall(r"^ExecStart=(.*)$", SERVICE, flags=re.MULTILINE)]
    return found


def test_what_the_examples_start_is_a_command_with_its_options():
    assert len(commands()) == 6
    for program, *words in commands():
        assert Path(program).name == "slackwater"
        assert {word for word in words if word.startswith("--")} <= options_of(words[0])


def test_volumes_and_services_that_are_named_are_there():
    services = COMPOSE["services"]
    for one in services.values():
        assert {volume.partition(":")[0] for volume in one["volumes"]} <= set(COMPOSE["volumes"])
        assert set(one.get("depends_on", ())) <= set(services)
        if "build" in one:
            assert (DEPLOY / one["build"]["context"] / one["build"]["dockerfile"]).is_file()
    by_kind = {one["kind"]: one for one in KUBERNETES}
    pod = by_kind["Deployment"]["spec"]["template"]
    assert by_kind["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    (volume,) = pod["spec"]["volumes"]
    assert (
        volume["persistentVolumeClaim"]["claimName"] == by_kind["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert by_kind["Deployment"]["spec"]["replicas"] == 1  # one process writes
    for name in re.findall(r"requirements[\w.-]*", DOCKERFILE):
        assert (ROOT / name).is_file()


def test_the_queue_of_the_example_is_closed_and_admits_its_pods():
    """The settings in its first lines are those of the driver, and fit its objects."""
    lines = (DEPLOY / "kueue.yaml").read_text(encoding="utf-8").splitlines()
    start = lines.index("# slackwater.toml:") + 1
    text = "\n".join(
        line[4:] for line in itertools.takewhile(lambda line: line.startswith("#"), lines[start:])
    )
    settings = tomllib.loads(text)
    options = QuotaOptions(**settings["drivers"][0]["options"]["quota"])
    by_kind = {one["kind"]: one for one in KUEUE}
    queue, pods = by_kind["ClusterQueue"], by_kind["Deployment"]
    check_queue(queue)
    check_quotas_limit(queue, options)
    assert options.queue_of("llama-8b") == queue["metadata"]["name"]
    assert {one["metadata"]["name"] for one in KUEUE if one["kind"] == "ResourceFlavor"} == set(
        options.places
    )
    assert by_kind["LocalQueue"]["spec"]["clusterQueue"] == queue["metadata"]["name"]
    assert (
        pods["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == by_kind["LocalQueue"]["metadata"]["name"]
    )
    assert has_resource(pods["spec"]["template"], options.resource)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "slackwater.service"
    unit.write_text(SERVICE.replace("/opt/slackwater/bin", str(Path(sys.executable).parent)))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
def test_the_install_lines_of_the_image_give_a_program_that_runs(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "image"], check=True)
    runs = re.findall(r"^RUN ((?:pip|uv) .*)$", DOCKERFILE, flags=re.MULTILINE)
    assert len(runs) == 2
    for line in runs:
        words = shlex.split(line.replace("--system", f"--python {tmp_path / 'image' / 'bin' / 'python'}"))
        subprocess.run([tmp_path / "image" / "bin" / words[0], *words[1:]], check=True, cwd=ROOT)
    help_ = [tmp_path / "image" / "bin" / "slackwater", "serve", "--help"]
    assert "schedules" in subprocess.run(help_, capture_output=True, text=True, check=True).stdout
