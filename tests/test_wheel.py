"""The wheel: one package ``slackwater`` that names no module of the repository, installed next to a user's folder ``flows``."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
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


def build_hook():
    """Return ``hatch_build.py`` as a module."""
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words, cwd, seconds=600, **more):
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=ENVIRONMENT | more, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source, out, target="wheel"):
    """Build with the installed packages, without a network."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    (made,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


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
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    installer = (
        [uv, "pip", "install", "--offline", "--python", python] if uv else [python, "-m", "pip", "install"]
    )
    run(*installer, "--quiet", "--no-index", "--no-deps", wheel, cwd=place)
    return place / "bin"


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a Prefect user: it has packages with the names of ours, which must not be imported."""
    for name in LAYERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('this is my own {name}')\n")
    return tmp_path


# ---
# The rewriting.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from flows import cli", "from slackwater.flows import cli"),
        ("from  flows.cli import main as go", "from  slackwater.flows.cli import main as go"),
        ("import forecasting", "from slackwater import forecasting"),
        ("import flows.cli as a, os", "import slackwater.flows.cli as a, os"),
        ("if x:\n    é = 'é'; from warehouse.times import a", "if x:\n    é = 'é'; from slackwater.warehouse.times import a"),
        ("from .flows import cli", "from .flows import cli"),
        ("from flowsy import cli\nimport warehouses", "from flowsy import cli\nimport warehouses"),
        ("a = 'flows.cli:main'", "a = 'slackwater.flows.cli:main'"),
        ('a = f"flows.engine.{b}", "-m", "flows.cli"', 'a = f"slackwater.flows.engine.{b}", "-m", "slackwater.flows.cli"'),
        ("a = 'warehouse.duckdb', 'flows/cli.py', {'warehouse': flows.cli}", None),
        ("a = 'my.flows.cli', 'slackwater.flows.cli'", None),
        ("a = files('flows') / 'flows'", "a = files('slackwater.flows') / 'flows'"),
        ("PackageLoader('flows', 'flows')", "PackageLoader('slackwater.flows', 'flows')"),
        (
            '"""Of `flows.cli`.\n\n>>> from warehouse import x\n"""',
            '"""Of `slackwater.flows.cli`.\n\n>>> from slackwater.warehouse import x\n"""',
        ),
    ],
)  # fmt: skip
def test_what_names_a_module_is_rewritten_and_nothing_else(before, after):
    hook = build_hook()
    known = hook.known_modules(ROOT)
    assert hook.rewritten(before.encode(), known).decode() == (before if after is None else after)


@pytest.mark.parametrize("text", ["import flows.cli", "import os, flows", "from \\\n  flows import cli"])
def test_what_it_cannot_rewrite_stops_the_build(text):
    hook = build_hook()
    with pytest.raises(ValueError, match="line 1"):
        hook.rewritten(text.encode(), hook.known_modules(ROOT))


def test_no_module_of_the_repository_is_named_in_the_package(package):
    files = sorted(package.rglob("*.py"))
    assert len(files) > 250
    for path in files:
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(compile(source, str(path), "exec", ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.partition(".")[0] not in LAYERS, path
            elif isinstance(node, ast.Import):
                assert not {name.name.partition(".")[0] for name in node.names} & set(LAYERS), path
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                for layer, rest in NAMED.findall(node.value):
                    inner = package / layer / rest.split(".")[1]
                    there = inner.is_dir() or inner.with_suffix(".py").exists()
                    assert not there, f"{path}: {node.value}"
            elif isinstance(node, ast.Call):  # a bare name that is looked up as a package
                words = [one.value for one in node.args if isinstance(one, ast.Constant)]
                assert not words or words[0] not in LAYERS, f"{path}:{node.lineno}"


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
        "from slackwater.forecasting.predictors import PREDICTORS\n"
        "extras = {entry.needs for entry in PREDICTORS.values() if not entry.installed}\n"
        "for name in names:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if error.name not in extras:\n"
        "            raise\n"
        f"assert not set(sys.modules) & set({LAYERS!r})\n"
        "print(len(names))"
    )
    assert int(run(installed / "python", "-c", program, cwd=folder)) > 250


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
    program = re.sub(rf"^from ({'|'.join(LAYERS)})\b", r"from slackwater.\1", shown, flags=re.MULTILINE)
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
