"""Write what every command prints of the stored runs and of wrong suites to files, for comparison.

Run ``python tests/frozen/outputs.py DIR`` before a refactoring and after it, then compare the two folders
with ``diff -r``. Nothing of it is frozen for good: texts may change, but not by accident.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from distbench.cli import main

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
RUNS = {"sample": "reports/sample", "frozen": "tests/frozen/run"}
FORMATS = ("deepspeed", "accelerate", "transformers", "torch", "torchtitan", "torchtitan-toml")
KINDS = ("strategies", "workloads", "data", "metrics", "launchers", "jobs", "views", "suite")
JOBS = ("equivalence", "convergence", "checkpoint", "links")
"""Kinds of job that have a view."""
WISHES = (
    *(["--memory", size] for size in ("1KiB", "100MiB", "80GiB")),
    *(["--devices", number] for number in ("1", "2")),
    ["--price", "2.5 USD"],
    [],
)


def printed(*arguments: str) -> str:
    """Exit code, output and errors of a command."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(arguments)
    return f"exit code {code}\n{out.getvalue()}--- stderr\n{errors.getvalue()}"


def of_runs() -> Iterator[tuple[str, str]]:
    """Name of an output, and the output, of each command on the stored runs."""
    listed = json.loads(_body(printed("list", "views", "--json")))["views"]
    views = [*(each["name"] for each in listed), *JOBS]
    for name, run in RUNS.items():
        for form in ([], ["--json"], ["--csv"], ["--md"], ["--price", "2.5 USD"]):
            yield f"{name}/show{''.join(form)}", printed("show", run, *form)
        for view, form in itertools.product(views, ([], ["--json"], ["--csv"], ["--md"])):
            yield f"{name}/view-{view}{''.join(form)}", printed("show", run, "--view", view, *form)
        tables = json.loads(_body(printed("query", "--tables", run, "--json")))
        for table in sorted(each["name"] for each in tables):
            yield f"{name}/sql-{table}", printed("query", f"select * from {table}", run, "--format", "csv")
        for number, wish in enumerate(WISHES):
            yield f"{name}/pick-{number}", printed("pick", run, *wish)
            yield f"{name}/pick-{number}-json", printed("pick", run, *wish, "--json")
        for form in ([], ["--json"]):
            yield f"{name}/history{''.join(form)}", printed("history", run, *form)
        for (other, theirs), form in itertools.product(RUNS.items(), ([], ["--json"], ["--md"])):
            yield f"{name}/compare-{other}{''.join(form)}", printed("compare", run, theirs, *form)
        shown = json.loads(_body(printed("show", run, "--json")))
        for case, form in itertools.product([each["case"] for each in shown["cases"]], FORMATS):
            words = ("adopt", run, case, "--as", form, "--force")
            slug = f"{name}/adopt-{case.replace('/', '-')}-{form}"
            yield slug, printed(*words)
            yield f"{slug}-large", printed(*words, "--for-parameters", "7e9")
        yield f"{name}/page.html", _page(run)
    for kind in KINDS:
        yield f"list-{kind}", printed("list", kind)
        yield f"list-{kind}-json", printed("list", kind, "--json")
    yield "schema.json", printed("list", "suite", "--json-schema")


def of_wrong_suites() -> Iterator[tuple[str, str]]:
    """What ``plan`` says of each wrong suite that the tests have."""
    from support import wrong_suites as suites

    texts = [suites.MINIMAL + getattr(case, "values", case)[0] + "\n" for case in suites.MISTAKES]
    texts += [suites.MINIMAL.replace("[ddp]", text) for text, _ in suites.MISTAKES_IN_STRATEGIES]
    for number, text in enumerate(texts):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "suite.yaml")
            file.write_text(text)
            yield f"suites/{number:03}", printed("plan", str(file)).replace(folder, "")


def _body(text: str) -> str:
    return text.partition("\n")[2].partition("--- stderr\n")[0]


def _page(run: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(run, Path(folder, "run")))
        text = printed("report", str(copied)).replace(folder, "")
        html = (copied / "report.html").read_text()
    # the scripts of libraries are not ours
    return text + re.sub(r"<script[^>]*>.{100000,}?</script>", "", html, flags=re.DOTALL)


def save_all(folder: Path) -> int:
    """Write each output to a file in *folder*; their number."""
    count = 0
    for name, text in itertools.chain(of_runs(), of_wrong_suites()):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        count += 1
    return count


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    with contextlib.chdir(ROOT):
        sys.stdout.write(f"{save_all(target)} outputs\n")
