"""An exception of the user's own model: its file and line, told once, and no trial that only repeats it."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.plan import PlannedTrial
from distbench.record import NOT_LAUNCHED_TEXT, Record, Status
from distbench.record.run_folder import Run
from distbench.run.user_errors import UserErrors
from support.records import case, failed, job_of, measured
from support.runs import MODELS, QUICK, call, call_outside

BF16 = PrecisionConfig(compute="bf16")
ERROR = "RuntimeError at mine.py:7: no view"


def of(name: str, micro: int = 4, world_size: int = 2, **changes: Any) -> Case:
    return case(name, world_size, batch=Batch(micro * world_size, micro, 1), **changes)


def raised(by: Case, error: str = ERROR, step: str = "warmup 0") -> Record:
    return failed(by, f"rank 1 in warmup: {error}", user_error=error, steps={"1": step})


SINGLE = of("single", world_size=1)
REPEATED = [
    ("single and a strategy of two ranks", [raised(SINGLE), raised(of("fsdp"))], of("ddp")),
    ("single alone, where there is one rank", [raised(SINGLE)], of("fsdp", world_size=1)),
    ("ddp and another strategy", [raised(of("ddp")), raised(of("zero"))], of("fsdp")),
    ("any number of rows, as it came with two", [raised(SINGLE), raised(of("ddp", 8))], of("zero", 2)),
    ("bf16, in two ways to cast", [raised(of("ddp", precision=BF16)), raised(of("fsdp", precision=BF16))],
     of("zero", precision=BF16)),
    ("before anything ran", [raised(of(name), step="build") for name in ("ddp", "zero")], of("fsdp")),
]  # fmt: skip
TRIED = [
    ("nothing failed", [], of("fsdp")),
    ("single alone: a loss may be written for a wrapper", [raised(SINGLE)], of("fsdp")),
    ("ddp alone: a wrapper may lack what is read", [raised(of("ddp"))], of("single")),
    ("two that shard: a parameter is a part", [raised(of("fsdp")), raised(of("zero"))], of("ddp")),
    ("another message", [raised(of("ddp")), raised(of("zero"), "TypeError at mine.py:7: no")], of("fsdp")),
    ("another number of rows", [raised(SINGLE)], of("ddp", 8)),
    ("one rank, as a line may be of others", [raised(of("ddp")), raised(of("zero"))], SINGLE),
    ("bf16: single and ddp cast alike", [raised(replace(SINGLE, precision=BF16)),
     raised(of("ddp", precision=BF16))], of("fsdp", precision=BF16)),
    ("another precision", [raised(SINGLE)], of("fsdp", precision=BF16)),
    ("would change the model", [raised(SINGLE)], of("ddp", workload=PluginChoice("mlp"))),
    ("compiled", [raised(SINGLE)], of("ddp", compile="default")),
    ("a later step", [raised(SINGLE, step="warmup 1")], of("fsdp")),
    ("one was measured", [raised(SINGLE), measured(of("zero"))], of("fsdp")),
    ("ranks that share rows", [raised(SINGLE)], case("tp", 2, batch=Batch(4, 4, 1))),
    ("not the user's code", [failed(SINGLE, steps={"1": "warmup 0"})], of("fsdp")),
]  # fmt: skip


@pytest.mark.parametrize(("why", "records", "next_case"), REPEATED)
def test_a_trial_that_can_only_repeat_the_error_is_not_launched(why, records, next_case):
    reason = decided(records).skip_reason(PlannedTrial(next_case))
    assert reason.startswith(
        f"{NOT_LAUNCHED_TEXT}: RuntimeError at mine.py:7 ended {records[0].case.name}"
    ), why
    # its check trains it as well
    assert decided(records).skip_reason(PlannedTrial(next_case, job=job_of("check", role="case"))) == reason


@pytest.mark.parametrize(("why", "records", "next_case"), TRIED)
def test_a_trial_that_may_go_otherwise_is_launched(why, records, next_case):
    assert decided(records).skip_reason(PlannedTrial(next_case)) == "", why


def test_what_only_a_check_raises_stops_no_timed_trial():
    check = job_of("check", role="reference")
    in_check = replace(raised(SINGLE, step="check 0"), job=check)
    by_ddp = replace(raised(of("ddp"), step="check 0"), job=check)
    both = decided([in_check, by_ddp])
    assert both.skip_reason(PlannedTrial(of("fsdp"), job=check)).startswith(NOT_LAUNCHED_TEXT)
    assert both.skip_reason(PlannedTrial(of("fsdp"))) == ""


def decided(records: list[Record]) -> UserErrors:
    errors = UserErrors()
    for record in records:
        errors.add(record)
    return errors


MINE = """\
import json

class Model:
    def __init__(self, text):
        self.read = lambda: json.loads(text)

def build():
    Model("{").read()

def meant():
    try:
        build()
    except ValueError:
        raise KeyError("no weights") from None

def of_a_library():
    return len
"""


@pytest.mark.parametrize(
    ("make", "line"),
    [("build", "mine.py:5"), ("meant", "mine.py:14"), ("of_a_library", "")],
    ids=["a library raises", "raised instead", "not in the user's code"],
)
@pytest.mark.parametrize("form", ["module", "package", "plain module of installed ones"])
def test_the_line_is_the_innermost_of_the_users_own_files(tmp_path, monkeypatch, make, line, form):
    user_line = user_code()
    folder = tmp_path / ("site-packages" if form.startswith("plain") else "src")
    file = folder / "own" / "mine.py" if form == "package" else folder / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    (folder / "beside.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    name = "own.mine" if form == "package" else "mine"
    module = importlib.import_module(name)
    try:
        with pytest.raises(Exception) as caught:
            getattr(module, make)()()
        wanted = f"own/{line}" if form == "package" and line else line
        assert user_line(caught.value, PluginChoice("user", {"model": f"{name}:{make}"})) == wanted
        assert user_line(caught.value, PluginChoice("transformer")) == "", "the model is distbench's"
    finally:
        for loaded in (name, name.partition(".")[0]):
            importlib.sys.modules.pop(loaded, None)  # type: ignore[attr-defined]


def test_a_file_that_is_no_python_has_its_line(tmp_path, monkeypatch):
    (tmp_path / "unfinished.py").write_text("import json\n\ndef build(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SyntaxError) as caught:
        importlib.import_module("unfinished")
    choice = PluginChoice("user", {"model": "unfinished:build"})
    assert user_code()(caught.value, choice) == "unfinished.py:3"


def user_code() -> Callable[[BaseException, PluginChoice], str]:
    from distbench.worker.user_code import user_line

    return user_line


def line_of(model: str, text: str) -> str:
    """``odd.py:N``, where *text* is in the class or function *model*."""
    lines = (MODELS / "odd.py").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if model in line.split("(")[0])
    return f"odd.py:{next(n for n, line in enumerate(lines, 1) if n > first and text in line)}"


EQUIVALENT = {"equivalent", "equivalent within rounding"}
SUITE = QUICK.replace("small:Small", "odd:OwnMistake").replace("global_batch", "per_device_batch") + (
    "strategies: [single, ddp, fsdp]\n"
    "optimizer: {name: sgd, kernel: foreach}\n"
    "check: {steps: 1, perturbed: 4, fp64: false}\n"
)


@pytest.mark.train
def test_the_error_of_a_model_is_told_once_and_resume_goes_on_after_its_correction(run_suite):
    finished = run_suite(SUITE)
    place = f"RuntimeError at {line_of('OwnMistake', 'half.view')}"
    statuses = {name.partition("/")[0]: each["status"] for name, each in finished.cases.items()}
    assert statuses == {"single": "crashed", "ddp": "crashed", "fsdp": "unsupported"}
    launched = [record for record in Run(finished.folder).records() if record.wall_s]
    # a reference of the check for each number of rows, and two timed trials
    assert sorted(record.case.strategy.name for record in launched) == ["ddp"] + ["single"] * 3
    assert {record.failure.user_place for record in launched if record.failure} == {place}
    assert finished.errors.count("view size is not compatible") == 1, finished.errors
    shown = " ".join(call("show", str(finished.folder)).stdout.split())
    assert shown.count("view size is not compatible") == 1
    assert place in shown.partition("Failed: ")[2]
    assert "Fix the model, then resume with: distbench run --resume RUN --retry-failed" in shown

    resume = ["run", "--resume", str(finished.folder), "--retry-failed", "--json"]
    mended = json.loads(call(*resume, CORRECTED="1").stdout)
    assert {each["status"] for each in mended["cases"]} == {"measured"}
    assert {each["equivalence"]["verdict"] for each in mended["cases"]} <= EQUIVALENT


@pytest.mark.train
def test_an_error_under_one_wrapper_leaves_the_others_alone(run_suite):
    loss = 'small:Small", loss_function: "odd:of_the_bare_module"'
    finished = run_suite(QUICK.replace('small:Small"', loss) + "strategies: [ddp, fsdp]\n")
    record = finished.record("ddp")
    assert (
        f"uses head of the module in addition to calling it ({line_of('of_the_bare', '.head')})"
        in record["reason"]
    )
    assert (record["status"], finished.record("fsdp")["status"]) == (Status.UNSUPPORTED, Status.MEASURED)


PLANNED = f"""
workload:
  - user: {{model: "small:Small", length: 32}}
  - user: {{model: ["odd:LooksAtItsWeights", "odd:OwnMistaek", "odd:NoConstructor", "odd:in_fp32"]}}
  - user: {{model: "small:Small", loss_function: "odd:los", length: 32}}
strategies: [ddp]
{QUICK.partition("data: text")[2]}"""


@pytest.mark.train
def test_a_plan_tells_what_is_wrong_with_each_callable(tmp_path):
    (tmp_path / "suite.yaml").write_text(PLANNED)
    done = call_outside("plan", str(tmp_path / "suite.yaml"))
    odd = MODELS / "odd.py"
    wanted = [
        f"model = 'odd:OwnMistaek': {odd} has no OwnMistaek; did you mean 'OwnMistake'? Allowed: ",
        "model = 'odd:NoConstructor' raised AttributeError: 'NoConstructor' object has no attribute 'width' "
        f"({line_of('NoConstructor', 'self.width')})",
        "model = 'odd:in_fp32' raised TypeError: in_fp32() missing 2 required positional arguments",
        f"loss_function = 'odd:los': {odd} has no los; ",
    ]
    found = [line for line in done.stderr.splitlines() if "workload.user: " in line]
    assert (done.returncode, len(found)) == (2, len(wanted)), done.stderr
    for said, line in zip(wanted, found, strict=True):
        assert f"suite.yaml:2: workload.user: {said}" in line


@pytest.mark.train
def test_a_plan_takes_a_model_that_works_and_one_that_looks_at_its_numbers(tmp_path):
    models = '["small:Small", "odd:LooksAtItsWeights"]'
    (tmp_path / "suite.yaml").write_text(QUICK.replace('"small:Small"', models) + "strategies: [ddp]\n")
    done = call_outside("plan", str(tmp_path / "suite.yaml"))
    assert done.returncode == 0, done.stderr
    assert "importing small:Small, odd:LooksAtItsWeights: ready" in done.stderr


@pytest.mark.train
def test_a_plan_has_the_cases_that_a_model_does_not_allow_and_why(tmp_path):
    models = '["small:Small", "odd:Synchronised", "odd:BatchNorm", "odd:OfTwoDtypes", "odd:OfComplexNumbers"]'
    text = QUICK.replace('"small:Small"', models) + "precision: [fp32, bf16]\nstrategies: [ddp]\n"
    (tmp_path / "suite.yaml").write_text(text)
    done = call_outside("plan", str(tmp_path / "suite.yaml"), "--json")
    planned = json.loads(done.stdout)
    told = {
        (item["case"].partition("model=")[2], "bf16" in item["case"]): item["reason"]
        for item in planned["cases"]
    }
    runs = [key for key, reason in told.items() if not reason]
    assert sorted(runs) == [("odd:BatchNorm", False), ("small:Small", False), ("small:Small", True)]
    assert "SyncBatchNorm runs on GPUs only" in told["odd:Synchronised", False]
    assert "running statistics in fp32" in told["odd:BatchNorm", True]
    assert "the model has parameters of 2 dtypes" in told["odd:OfTwoDtypes", True]
    assert (
        "the parameter phase of the model is complex (torch.complex64)" in told["odd:OfComplexNumbers", False]
    )
    assert {trial["case_id"] for trial in planned["trials"]} == {
        item["case_id"] for item in planned["cases"] if item["status"] == "planned"
    }


@pytest.mark.train
def test_a_run_launches_nothing_of_a_model_that_can_not_be_constructed(run_suite):
    text = QUICK.replace("small:Small", "odd:NoConstructor") + "precision: [fp32, bf16]\nstrategies: [ddp]\n"
    finished = run_suite(text)
    assert {each["status"] for each in finished.cases.values()} == {"prepare_failed"}
    assert finished.errors.count("has no attribute 'width'") == 1, finished.errors
    shown = " ".join(call("show", str(finished.folder)).stdout.split())
    assert shown.count("has no attribute 'width'") == 1, shown
    assert f"({line_of('NoConstructor', 'self.width')})" in shown
