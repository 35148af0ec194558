"""Commands with stored reference answers, by name; each runs in a scene: a folder left by earlier commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from .normal import columns, leaves, normal
from .running import CHECKOUT, slackwater

#: The variable with the folder of measured prices and counts; without it, cases that read the folder are left out.
DATA = "SLACKWATER_DATA"
H100 = "andylizf/skynomad-artifact:h100"
V100 = "andylizf/skynomad-artifact:v100"
#: (source, zone) of the series in the small folder: three of moving H100 counts, one of V100 with a moving price.
SMALL = ((H100, "us-east5-a"), (H100, "us-east4-a"), (H100, "us-central1-a"), (V100, "us-east-1c"))
EAST5, EAST4, CENTRAL = (
    f"gcp/{region}/{zone}/a3-highgpu-1g"
    for region, zone in (
        ("us-east5", "us-east5-a"),
        ("us-east4", "us-east4-a"),
        ("us-central1", "us-central1-a"),
    )
)
SIMULATED = "simulated/east/east-a/h100"
AT = "2025-10-12T12:00Z"
TURNS = ("2026-01-05T12:00Z", "2026-01-05T12:30Z", "2026-01-05T13:00Z")
#: Fewer markets and measured origins than a turn has by default; every forecaster and every policy.
FEW = """\
max_markets = 2
measured_origins = 4
planning_horizon = 24
simulated_days = 10.0
history_days = 7.0
"""
#: Columns of stored tables that hold clock times, or fitted models as bytes.
CLOCK = frozenset({"imported_at", "made", "measured_at", "created_at", "state", "file", "fingerprint"})


#: Figures of a fitted throughput and memory, with their relative tolerance between two processors.
SPEEDS = {
    **dict.fromkeys(("*.tokens_per_second*", "*.low*", "*.high*", "*.throughput.rates*"), 3e-5),
    "*.memory_gb": 1e-7,
}


class NoDataError(Exception):
    """The case reads measured prices and counts, and no folder of them is given."""


class BrokenError(Exception):
    """The command ended with an unexpected error: the exit and its last output."""

    def __init__(self, how: str, said: str):
        super().__init__(how)
        self.said = said.splitlines()[-12:]


@dataclass(frozen=True)
class Case:
    """One command: its words, the commands needed before it in the same folder, and how to read its answer.

    `seconds` is roughly its CPU time, by which cases are ordered. `copies` are files copied in the scene
    first, so that a command that stores does not change the files of other cases. `{data}`, `{small}` and
    `{checkout}` in the words are folders. `fitted` maps path patterns of figures that depend on the
    processor, because a fit does, to their relative tolerance between two machines.
    """

    name: str
    scene: str
    words: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    slow: bool = False
    files: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (0,)
    fitted: Mapping[str, float] = field(default_factory=dict)
    read: Callable[[Path, Any], Any] = lambda folder, answer: answer

    @property
    def reads_data(self) -> bool:
        """Return whether the case itself needs the measured prices and counts."""
        return any("{data}" in word or "{small}" in word for word in self.words)


class Session:
    """Folders of the scenes, and the answers computed in them so far."""

    def __init__(self, root: Path, cases: Mapping[str, Case]):
        self.root = root
        self.cases = cases
        self.done: dict[str, Any] = {}

    def answer(self, name: str) -> Any:
        """Return the normalised answer of a case, after running its needs; raises `NoDataError`, `BrokenError`."""
        if name not in self.done:
            try:
                self.done[name] = self._made(self.cases[name])
            except BrokenError as error:
                self.done[name] = error
        if isinstance(self.done[name], BrokenError):
            raise self.done[name]
        return self.done[name]

    def _made(self, case: Case) -> Any:
        for need in case.needs:
            self.answer(need)
        folder = self.root / case.scene
        folder.mkdir(exist_ok=True)
        for file, text in case.files.items():
            (folder / file).write_text(text(), encoding="utf-8")
        for source, target in case.copies.items():
            shutil.copyfile(folder / source, folder / target)
        ran = slackwater(self.words(case), folder)
        if ran.code not in case.codes:
            raise BrokenError(f"{case.name}: exit code {ran.code}, expected {case.codes}", ran.err)
        return normal(case.read(folder, ran.answer()), self.places())

    def words(self, case: Case) -> list[str]:
        """Return the words of the command with folders substituted for their names."""
        names = {"{checkout}": str(CHECKOUT)}
        if case.reads_data:
            names |= {"{data}": str(data_folder()), "{small}": str(self.small())}
        return [_replaced(word, names) for word in case.words]

    def small(self) -> Path:
        """Return a folder of four of the measured series, created on first use."""
        folder = self.root / "small-data"
        if not folder.exists():
            folder.mkdir()
            whole = data_folder()
            for name in ("prices.parquet", "availability.parquet"):
                table = pq.read_table(whole / name)
                wanted = [pc.and_(pc.equal(table["source"], s), pc.equal(table["zone"], z)) for s, z in SMALL]
                mask = wanted[0]
                for other in wanted[1:]:
                    mask = pc.or_(mask, other)
                pq.write_table(table.filter(mask), folder / name)
            (folder / "finetune").symlink_to(whole / "finetune")
        return folder

    def places(self) -> dict[str, str]:
        """Map the paths of this machine to placeholders."""
        named = {str(self.root): "<scenes>", str(CHECKOUT): "<checkout>"}
        if os.environ.get(DATA):
            named[str(data_folder())] = "<data>"
        return named


def data_folder() -> Path:
    """Return the folder of measured prices and counts; raises `NoDataError`."""
    told = os.environ.get(DATA)
    if not told or not (Path(told) / "prices.parquet").exists():
        raise NoDataError(f"found no prices.parquet in {DATA}={told!r}; name the folder of the open data")
    return Path(told).resolve()


def _replaced(word: str, names: Mapping[str, str]) -> str:
    for name, place in names.items():
        word = word.replace(name, place)
    return word


def job_file(example: str, market: str, **changes: str) -> Callable[[], str]:
    """Return a writer of an example job on a market, with fields changed."""

    def text() -> str:
        told = (CHECKOUT / "examples" / f"{example}.toml").read_text(encoding="utf-8")
        for name, value in changes.items():
            told = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", told)
        return f'market = "{market}"\n{told}'

    return text


def exported_to(name: str) -> Callable[[Path, Any], Any]:
    """Return a reader of the manifest of an export to that folder, with a summary of the columns of every table."""
    return lambda folder, answer: _exported(folder / name, answer)


def _exported(folder: Path, answer: Any) -> Any:
    tables = {}
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        rows = [
            dict(leaves(normal({name: _told(value) for name, value in row.items() if name not in CLOCK})))
            for row in table.to_pylist()
        ]
        tables[file.stem] = {"~rows": table.num_rows, "columns": columns(rows)}
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    # The hashes cover bytes with clock times; the columns describe the stored rows.
    manifest["tables"] = {name: told["rows"] for name, told in manifest["tables"].items()}
    answer["answer"]["tables"] = [[told["table"], told["rows"]] for told in answer["answer"]["tables"]]
    return answer | {"manifest": manifest, "contents": tables}


def _told(value: Any) -> Any:
    """Return a stored value as JSON; a document stored as text is parsed, so that its figures are compared as figures."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        return json.loads(value)
    return value if value is None or isinstance(value, (bool, int, float, str, list, dict)) else str(value)


def with_toml(name: str) -> Callable[[Path, Any], Any]:
    """Return a reader of the printed answer and the TOML file that the command wrote."""

    def read(folder: Path, answer: Any) -> Any:
        return answer | {name: tomllib.loads((folder / name).read_text(encoding="utf-8"))}

    return read


def _of(scene: str, name: str, words: str, seconds: float, *needs: str, **more: Any) -> Case:
    return Case(name, scene, (*words.split(), "--json"), seconds, needs, **more)


def jobs_on_data() -> dict[str, Callable[[], str]]:
    """Return three of the example jobs; two of them compete for the instances of one market."""
    return {
        "llama.toml": job_file("llama-8b-lora", EAST5),
        "qwen.toml": job_file("qwen-14b-sft", EAST5),
        "bert.toml": job_file("bert-sweep", EAST4),
    }


JOBS = "--job llama.toml --job qwen.toml --job bert.toml"


def quick_cases() -> list[Case]:
    """Return the cases of a few seconds each; together less than three minutes of one core."""
    # The third turn starts from the reported state of one job, and scores another job, which has ended by then.
    simulated = {
        "slackwater.toml": lambda: FEW,
        "long.toml": job_file("llama-8b-lora", SIMULATED, name='"long"'),
        "short.toml": job_file("bert-sweep", SIMULATED, name='"short"', amount="1", deadline_in='"1h"'),
    }
    first, second, third = (f"run --db turns.duckdb --at {at}" for at in TURNS)
    report = f"job report long --at {TURNS[1]} --progress 5 --spot 6 --db turns.duckdb"
    told = "--data {small} --at " + AT
    plan = f"plan llama.toml {told} --db none.duckdb --policy"
    fill = f"fill {{checkout}}/examples/requests/three-fields.toml {told} --out job.toml"
    count = "--market */us-east5-a/* --variable count --step 1h --workers 1"
    return [
        _of(
            "few",
            "few-1",
            f"{first} --job long.toml --job short.toml",
            45,
            files=simulated,
            fitted={"$.answer.accuracy.columns.rmse.*": 1e-8},
        ),
        _of("few", "few-2", second, 30, "few-1"),
        _of("few", "job-report", report, 3, "few-2"),
        _of("few", "few-3", third, 30, "job-report"),
        _of("few", "markets", "markets --db turns.duckdb", 2, "few-3"),
        _of("few", "job-list", "job list --db turns.duckdb", 2, "few-3"),
        _of("few", "job-show", "job show long --db turns.duckdb", 5, "few-3"),
        _of("few", "leaderboard", "leaderboard --db turns.duckdb", 5, "few-3"),
        _of("few", "status", "status --db turns.duckdb", 4, "few-3", codes=(0, 3, 4, 5)),
        _of(
            "few",
            "export",
            "export exported --db turns.duckdb",
            3,
            "few-3",
            read=exported_to("exported"),
            fitted={"$.contents.accuracy.columns.rmse.*": 1e-8},
        ),
        _of("few", "import", "import exported --db again.duckdb", 3, "export"),
        _of("plan-stochastic", "plan-stochastic", f"{plan} Stochastic(72)", 10, files=jobs_on_data()),
        _of(
            "fleet-plan", "fleet-plan", f"fleet plan {told} --db none.duckdb {JOBS}", 11, files=jobs_on_data()
        ),
        _of("forecast", "forecast", f"forecast {told} --db forecast.duckdb --market {EAST5}", 12),
        _of("accuracy-count", "accuracy-count", f"accuracy --data {{small}} {count}", 13),
        _of("fill", "fill-three-fields", fill, 18, read=with_toml("job.toml"), fitted=SPEEDS),
        _of("rent", "rent", "rent {checkout}/examples/types.toml --budget 24", 5),
        _of("schema", "decision-schema", "schema decision", 1),
    ]


def slow_cases() -> list[Case]:
    """Return the cases that take from ten seconds of one core to many minutes."""
    first, second, third = (f"run --db turns.duckdb --at {at}" for at in TURNS)
    told = "--data {data} --at " + AT
    small = "--data {small} --at " + AT
    plan = f"plan llama.toml {small} --db none.duckdb --policy"
    backfill = f"backfill --from 2026-01-05T11:00Z --to {TURNS[1]} --db backfill.duckdb"
    replay = f"replay --job llama.toml --market {EAST5} --from {AT} --policy all --data {{data}}"
    fill = f"fill {{checkout}}/examples/requests/all-fields.toml {told} --run --out job.toml"
    rent = f"rent {{checkout}}/examples/types.toml --budget 100 --market {EAST5} {small}"
    experiments = (
        ("cant-be-late", 20),
        ("renting", 20),
        ("markets", 30),
        ("predictors", 45),
        ("error", 120),
        ("pool", 300),
        ("selection", 600),
    )
    few = {"slackwater.toml": lambda: FEW}
    slow = [
        _of("few", "backfill", backfill, 30, "few-3", copies={"turns.duckdb": "backfill.duckdb"}),
        _of(
            "few",
            "export-backfill",
            "export filled --db backfill.duckdb",
            3,
            "backfill",
            read=exported_to("filled"),
            fitted={"$.contents.accuracy.columns.rmse.*": 1e-8},
        ),
        _of("rent-whole", "rent-whole", "rent {checkout}/examples/types.toml --budget 24 --whole", 6),
        _of("rent-market", "rent-market", rent, 10),
        _of("plan-ahap", "plan-ahap", f"{plan} AHAP(3,1,0.5,expected)", 10, files=jobs_on_data()),
        _of(
            "plan-up",
            "plan-up",
            f"plan llama.toml {told} --db none.duckdb --policy UP",
            15,
            files=jobs_on_data(),
        ),
        _of(
            "run-data-few",
            "run-data-few",
            f"run {small} --db data.duckdb {JOBS}",
            40,
            files=jobs_on_data() | few,
        ),
        _of("replay", "replay-all", replay, 25, files=jobs_on_data()),
        _of(
            "fill-all-fields", "fill-all-fields", fill, 40, codes=(2,)
        ),  # names a GPU without a known market at that time
        _of("turns", "turns-1", first, 25),
        _of("turns", "turns-2", second, 10, "turns-1"),
        _of("turns", "turns-3", third, 10, "turns-2"),
        _of(
            "turns",
            "export-turns",
            "export exported --db turns.duckdb",
            6,
            "turns-3",
            read=exported_to("exported"),
            fitted={"$.contents.accuracy.columns.rmse.*": 1e-8},
        ),
        _of("run-data", "run-data", f"run {told} --db data.duckdb {JOBS}", 25, files=jobs_on_data()),
        _of("accuracy", "accuracy", "accuracy --data {small} --workers 1", 40),
        _of("fitted", "fit-configurations", "fit-configurations {data}/finetune --fast --out model.zip", 90),
        _of("cluster", "experiment-cluster", "experiment cluster --data {data}/finetune --fast", 120),
        *(
            _of(name, f"experiment-{name}", f"experiment {name} --data {{data}} --fast", cost)
            for name, cost in experiments
        ),
    ]
    return [replace(case, slow=True) for case in slow]


def all_cases() -> dict[str, Case]:
    """Return every case by name, the quick cases first, each group by cost."""
    cases = {case.name: case for case in (*quick_cases(), *slow_cases())}
    cost = {name: sum(cases[one].seconds for one in (*needs(cases, name), name)) for name in cases}
    return dict(sorted(cases.items(), key=lambda item: (item[1].slow, cost[item[0]])))


def needs(cases: Mapping[str, Case], name: str) -> list[str]:
    """Return the cases that must run before a case, in order."""
    return [one for need in cases[name].needs for one in (*needs(cases, need), need)]


def new_root() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for the scenes."""
    return tempfile.TemporaryDirectory(prefix="fence-", ignore_cleanup_errors=True)
