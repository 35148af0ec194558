"""The wheel: one package ``slackwater`` that names no module of the repository, installed next to a user's folder ``flows``."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from fill_kit import write_measurements

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("flows", "forecasting", "optimization", "warehouse")
#: Words with the repository's names that are no modules: keys, headings, file names.
NAMED = re.compile(rf"(?<![\w./-])({'|'.join(LAYERS)})((?:\.[A-Za-z_]\w*)+)")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "PREFECT_", "SLACKWATER_"))
}


def run(*words, cwd, seconds=600, **more):
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=ENVIRONMENT | more, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source, out, target="wheel"):
    """Build from a copy, since setuptools writes beside the sources, with installed packages and without a network."""
    copy = out.parent / f"{out.name}-source"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "reports", "*.egg-info", "__pycache__")
    shutil.copytree(source, copy, ignore=left_out)
    program = f"from setuptools import build_meta; build_meta.build_{target}({str(out)!r})"
    run(sys.executable, "-c", program, cwd=copy, SOURCE_DATE_EPOCH="1767225600")
    (made,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def install(wheel, python):
    """Install the wheel alone, without the libraries that it requires, in the environment of ``python``."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    installer = (
        [uv, "pip", "install", "--offline", "--python", python] if uv else [python, "-m", "pip", "install"]
    )
    run(*installer, "--quiet", "--no-index", "--no-deps", wheel, cwd=wheel.parent)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def package(wheel, tmp_path_factory):
    """Return the package as it is in the wheel."""
    folder = tmp_path_factory.mktemp("package")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "slackwater"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return the ``bin`` of an environment with the wheel and the libraries installed here, but nothing of the repository."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    (site,) = place.glob("lib/python3*/site-packages")
    # Its files are visible, and its .pth files (the editable install) are not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install(wheel, python)
    return place / "bin"


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a Prefect user: it has packages with the names of ours, which must not be imported."""
    for name in LAYERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('this is my own {name}')\n")
    return tmp_path


# ---
# Its contents.


def test_the_list_of_packages_is_that_of_the_folders():
    with open(ROOT / "pyproject.toml", "rb") as file:
        named = tomllib.load(file)["tool"]["setuptools"]["packages"]
    inside = (
        path.parent.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("__init__.py")
    )
    assert named == ["slackwater", *sorted(f"slackwater.{'.'.join(path.parts)}" for path in inside)]


def test_no_file_of_the_repository_imports_a_layer_by_its_bare_name():
    bare = re.compile(
        r"^\s*(?:>>> )?(?:from|import) (?:flows|forecasting|optimization|studies|warehouse)\b", re.MULTILINE
    )
    files = [
        path
        for folder in (*LAYERS, "studies", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 600
    assert not [path for path in files if bare.search(path.read_text(encoding="utf-8"))]


def test_the_package_has_every_file_of_the_layers_and_the_examples(package):
    def names(top, folder):
        found = (path.relative_to(top) for path in (top / folder).rglob("*") if path.is_file())
        return {path for path in found if "__pycache__" not in path.parts}

    for folder in (*LAYERS, "examples"):
        assert names(package, folder) == names(ROOT, folder)
    entries = yaml.safe_load((package / "prefect.yaml").read_text())["deployments"]
    assert entries
    assert all(entry["entrypoint"].startswith("slackwater.flows.") for entry in entries)
    assert (package / "py.typed").exists()


# ---
# The wheel, installed.


def test_beside_folders_of_the_same_names_the_command_and_the_faces_are_ours(installed, folder):
    assert re.fullmatch(r"\d+\.\d+.*\n", run(installed / "slackwater", "--version", cwd=folder))
    run(installed / "slackwater", "init", "--deployments", cwd=folder)
    entry = yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"][0]["entrypoint"]
    assert entry == "slackwater.flows.engine.flows.pipeline"
    program = (
        "import slackwater, sys\n"
        "from slackwater import optimization\n"
        "assert slackwater.forecasting.forecast and slackwater.warehouse.ingest and optimization.plan\n"
        "assert optimization.plan.__module__ == 'slackwater.optimization.window.solver'\n"
        f"assert not set(sys.modules) & set({LAYERS!r})\n"
        "try:\n    slackwater.no_such_layer\nexcept AttributeError:\n    print('done')\n"
    )
    assert run(installed / "python", "-c", program, cwd=folder) == "done\n"


def test_the_wheel_puts_one_package_beside_other_code_and_says_what_it_runs_on(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"slackwater"}
    assert {name for name in names if name.count("/") == 1 and name.startswith("slackwater/")} == {
        "slackwater/__init__.py", "slackwater/automations.yaml", "slackwater/prefect.yaml", "slackwater/py.typed",
    }  # fmt: skip
    for minor in (11, 12, 13, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in about


@pytest.mark.slow
def test_a_wheel_made_from_the_source_archive_is_the_same(wheel, tmp_path):
    archive = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = build(source, tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_every_module_of_the_wheel_is_imported_under_its_own_name(installed, folder):
    program = (
        "import sys, importlib, slackwater\n"
        "from pathlib import Path\n"
        "top = Path(slackwater.__file__).parent\n"
        "files = [path.relative_to(top.parent).with_suffix('') for path in sorted(top.rglob('*.py'))]\n"
        "names = ['.'.join(path.parts).removesuffix('.__init__') for path in files if path.name != 'run_probe']\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        f"assert not set(sys.modules) & set({LAYERS!r})\n"
        "print(len(names))"
    )
    assert int(run(installed / "python", "-c", program, cwd=folder)) > 250


@pytest.mark.slow  # downloads the libraries, some hundred megabytes
@pytest.mark.parametrize("tool", ["uv tool", "pipx"])
def test_the_wheel_is_installed_as_a_program_of_its_own_as_the_page_says(wheel, folder, tool):
    page = (ROOT / "docs" / "how-to-run-it.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{tool} install .*?(?= +#|$)", page, flags=re.MULTILINE)
    (folder / "dist").mkdir()
    shutil.copy(wheel, folder / "dist")
    venv.create(folder / "tools", with_pip=True)
    program = tool.split()[0]
    got = subprocess.run(
        [folder / "tools/bin/pip", "install", "--quiet", program], capture_output=True, check=False
    )
    if got.returncode:
        pytest.skip(f"no registry of packages has {program}")
    paths = os.pathsep.join([str(folder / "tools/bin"), str(folder / ".local/bin"), os.environ["PATH"]])
    alone = {"HOME": str(folder), "PATH": paths}
    run("sh", "-c", line, cwd=folder, seconds=1800, **alone)
    assert re.fullmatch(r"\d+\.\d+.*\n", run("slackwater", "--version", cwd=folder, **alone))
    settings = 'simulated_days = 4.0\nmax_markets = 2\nplanner = "seasonal_naive"\nmodels = ["last_value", "seasonal_naive"]\n'
    (folder / "slackwater.toml").write_text(settings)
    answer = json.loads(
        run("slackwater", "run", "--at", "2026-03-10T06:00:00Z", "--json", cwd=folder, **alone)
    )
    assert answer["decisions"]


@pytest.mark.slow
@pytest.mark.engine
def test_a_turn_a_plan_and_a_backfill_run_in_such_a_folder(installed, folder):
    (folder / "slackwater.toml").write_text(
        'simulated_days = 4.0\nmax_markets = 2\nplanner = "seasonal_naive"\nmodels = ["last_value", "seasonal_naive"]\n'
        "measured_origins = 2\nrisk_paths = 20\n"
    )
    at = "2026-03-10T06:00:00Z"
    answer = json.loads(run(installed / "slackwater", "run", "--at", at, "--json", cwd=folder))
    assert answer["decisions"]
    job = installed.parent / "job.toml"
    example = next(installed.parent.glob("lib/python3*/site-packages/slackwater/examples/llama-8b-lora.toml"))
    shutil.copyfile(example, job)
    market = answer["decisions"][0]["market"]
    plan = json.loads(
        run(installed / "slackwater", "plan", job, "--market", market, "--at", at, "--json", cwd=folder)
    )
    assert plan["market"] == market
    made = run(
        installed / "slackwater", "backfill", "--from", "2026-03-10T02:00:00Z", "--to", "2026-03-10T03:00:00Z", "--json",
        cwd=folder,
    )  # fmt: skip
    assert json.loads(made)["slots"] == 3


@pytest.mark.slow
def test_the_library_page_runs_on_the_wheel(installed, folder):
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    shown = "\n".join(part.split("```", 1)[0] for part in page.split("```python\n")[1:])
    program = shown
    assert program.count("from slackwater.") >= 6
    write_measurements(folder / "measured")
    assert "hindsight" in run(installed / "python", "-c", program, cwd=folder)


@pytest.mark.slow
@pytest.mark.engine
def test_the_deployments_are_made_from_such_a_folder(installed, folder):
    run(installed / "slackwater", "init", "--deployments", cwd=folder)
    program = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from slackwater.flows.engine.run import prepare_engine\n"
        "from slackwater.flows.engine.serving import running_server\n"
        "prepare_engine(Path.cwd())\n"
        "def prefect(*words):\n"
        "    subprocess.run([sys.executable, '-m', 'prefect', *words], check=True)\n"
        "with running_server(Path('server.log')):\n"
        "    prefect('work-pool', 'create', 'slackwater', '--type', 'process')\n"
        "    prefect('deploy', '--all', '--no-prompt')\n"
        "    prefect('deployment', 'inspect', 'pipeline/every-slot')\n"
    )
    said = run(installed / "python", "-c", program, cwd=folder, COLUMNS="200")
    assert "slackwater.flows.engine.flows.pipeline" in said
