"""`python -m tests.golden.fence make|check|list [NAME...]`: make the reference answers, or show differences from them."""

from __future__ import annotations

import argparse
import fnmatch
import json
import resource
import sys
import time
from pathlib import Path

from .cases import BrokenError, Case, NoDataError, Session, all_cases, needs, new_root
from .differences import differences, is_fitted
from .normal import packed, summary, text, unpacked

HERE = Path(__file__).resolve().parent
ANSWERS = HERE / "answers"


def main(words: list[str] | None = None) -> int:
    """Return the exit code: 0 without differences, 1 with differences, 2 for an unknown case or missing data of a named case."""
    options = _options().parse_args(words)
    cases = all_cases()
    names = chosen(cases, options.names, quick=options.quick, slow=options.slow)
    if not names:
        print(f"no case matches {' '.join(options.names)}; `list` names them", file=sys.stderr)
        return 2
    if options.verb == "list":
        for name in names:
            case = cases[name]
            print(
                f"{name:24} {'slow' if case.slow else 'quick'} {case.seconds:4.0f} s  {' '.join(case.words)}"
            )
        return 0
    if options.scenes and options.scenes.exists() and any(options.scenes.iterdir()):
        print(
            f"{options.scenes} is not empty; a scene begins in a new folder: name another one",
            file=sys.stderr,
        )
        return 2
    with new_root() as root:
        session = Session(Path(options.scenes or root).resolve(), cases)
        session.root.mkdir(parents=True, exist_ok=True)
        return _each(session, names, options)


def chosen(cases: dict[str, Case], patterns: list[str], *, quick: bool, slow: bool) -> list[str]:
    """Return the names that match any of the patterns (all without a pattern), in running order."""
    wanted = [
        name
        for name, case in cases.items()
        if (not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns))
        and not (quick and case.slow)
        and not (slow and not case.slow)
    ]
    ordered: dict[str, None] = {}
    for name in wanted:
        ordered |= dict.fromkeys(need for need in needs(cases, name) if need in wanted) | {name: None}
    return list(ordered)


def _each(session: Session, names: list[str], options: argparse.Namespace) -> int:
    counts = {"same": 0, "different": 0, "broken": 0, "made": 0, "left out": 0}
    for name in names:
        started, cpu = time.monotonic(), _cpu()
        try:
            answer = session.answer(name)
        except NoDataError as error:
            outcome, lines = "left out", [f"    {error}"]
        except BrokenError as error:
            outcome, lines = "broken", [f"    {error}", *(f"    | {line}" for line in error.said)]
        else:
            whole = json.loads(json.dumps(answer))
            outcome, lines = (
                make(name, session.cases[name], whole, options)
                if options.verb == "make"
                else check(session.cases[name], whole, options)
            )
        counts[outcome] += 1
        print(
            f"{name:24} {outcome:9} {time.monotonic() - started:6.1f} s, CPU {_cpu() - cpu:6.1f} s",
            flush=True,
        )
        for line in lines:
            print(line, flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
    if counts["different"] or counts["broken"]:
        return 1
    return 2 if counts["left out"] and options.names else 0


def make(name: str, case: Case, whole: object, options: argparse.Namespace) -> tuple[str, list[str]]:
    """Store the answer as the reference; also store the full answer if a folder for it is given."""
    told = {"case": name, "command": "slackwater " + " ".join(case.words), "answer": packed(summary(whole))}
    ANSWERS.mkdir(exist_ok=True)
    written = text(told) + "\n"
    (ANSWERS / f"{name}.json").write_text(written, encoding="utf-8")
    if options.whole:
        options.whole.mkdir(parents=True, exist_ok=True)
        (options.whole / f"{name}.json").write_text(
            json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return "made", [f"    {len(written) / 1000:.1f} kB"]


def check(case: Case, whole: object, options: argparse.Namespace) -> tuple[str, list[str]]:
    """Compare with the stored reference, entry by entry if the full answer is stored."""
    name = case.name
    file = ANSWERS / f"{name}.json"
    if not file.exists():
        return "different", [f"    no {file.name} to compare with; `make {name}` writes it"]
    old, new = unpacked(json.loads(file.read_text(encoding="utf-8"))["answer"]), summary(whole)
    if options.whole and (options.whole / f"{name}.json").exists():
        old, new = json.loads((options.whole / f"{name}.json").read_text(encoding="utf-8")), whole
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        (options.keep / f"{name}.json").write_text(
            json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    found = [
        difference
        for difference in differences(
            old, new, relative=options.tolerance, absolute=options.absolute, added_ok=options.added_ok
        )
        if not is_fitted(case.fitted, difference)
    ]
    if not found:
        return "same", []
    lines = [f"    {difference.line()}" for difference in found[: options.lines]]
    finite = [abs(difference.relative) for difference in found if difference.relative != float("inf")]
    largest = f"; largest relative difference {max(finite):.2g}" if finite else ""
    return "different", [*lines, f"    {len(found)} differences{largest}"]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.fence", description=__doc__)
    parser.add_argument("verb", choices=("make", "check", "list"))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="cases, or patterns such as 'experiment-*' (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="the quick cases only")
    parser.add_argument("--slow", action="store_true", help="the slow cases only")
    parser.add_argument("--added-ok", action="store_true", help="keys that are new are no difference")
    parser.add_argument(
        "--tolerance", type=float, default=1e-9, help="relative difference that is none (1e-9)"
    )
    parser.add_argument(
        "--absolute", type=float, default=1e-9, help="absolute difference that is none (1e-9)"
    )
    parser.add_argument("--lines", type=int, default=40, help="differences printed for each case (40)")
    parser.add_argument(
        "--whole",
        type=Path,
        metavar="DIR",
        help="make: keep unsummarised answers there; check: compare with those",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="check: write the new unsummarised answers there"
    )
    parser.add_argument(
        "--scenes",
        type=Path,
        metavar="DIR",
        help="work in this new folder and leave it (default: a temporary one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
