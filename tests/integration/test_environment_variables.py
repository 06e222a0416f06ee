"""Environment variables of the ranks as an axis: they reach the ranks, and are read back from them."""

from support.runs import QUICK

SUITE = QUICK.replace("small:Small", "odd:HasItsVariable").replace(
    "world_sizes", "strategies: [ddp]\nworld_sizes"
)
SHORT = SUITE.replace("steps: 3", "steps: 1")


def test_each_value_reaches_the_ranks_of_its_case_before_they_compute(run_suite):
    done = run_suite(f"{SHORT}env: {{ATEN_CPU_CAPABILITY: [default, avx2], SIZE: 1}}\n")
    assert done.code == 0, done.errors
    values = {
        tuple(done.read(file)["effective"]["env"].items())
        for file in done.folder.glob("trials/*/0/record.json")
    }
    assert values == {(("ATEN_CPU_CAPABILITY", value), ("SIZE", "1")) for value in ("default", "avx2")}
    assert len(done.cases) == 2


def test_a_rank_whose_variable_is_another_is_a_mismatch(run_suite):
    text = SHORT.replace("HasItsVariable", "ChangesItsVariable")
    done = run_suite(f"{text}env: {{ATEN_CPU_CAPABILITY: default}}\n")
    (case,) = done.cases.values()
    assert case["status"] == "mismatch"
    assert "env.ATEN_CPU_CAPABILITY: expected 'default', found 'other'" in case["reason"]
