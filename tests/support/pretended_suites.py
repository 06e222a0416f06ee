"""Suites whose trials nobody launches: a run of one takes no processes and few milliseconds."""

from support.suites import SuiteText

COMMON = """
workload: {mlp: {}}
batch: {global_batch_size: 8}
world_sizes: [1]
measure: {steps: 2, trials: 3}
metrics: [steptime, throughput]
gate: {min_pairs: 3, max_pairs: 3, equivalence: ignored}
"""
SUITE = SuiteText(
    f"{COMMON}launcher: pretend\nstrategies: [pretended, {{pretended: {{does: also-works}}}}]\n"
)


def pretended_suite(**sections: str) -> SuiteText:
    """A suite of two cases on two ranks, with *sections* in place of these or beside them."""
    usual = {
        "workload": "{mlp: {}}",
        "batch": "{global_batch_size: 8}",
        "world_sizes": "[2]",
        "metrics": "[steptime, throughput]",
        "launcher": "pretend",
        "strategies": "[{pretended: {does: [works, also-works]}}]",
    }
    return SuiteText("".join(f"{key}: {value}\n" for key, value in (usual | sections).items()))


def held_by(file: str) -> str:
    """A suite with one case whose second trial does not end while *file* exists."""
    return f'{COMMON}launcher: {{faulty: {{file: "{file}", rounds: [1]}}}}\nstrategies: [pretended]\n'
