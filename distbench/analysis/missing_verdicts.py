"""Report requested judgements that gave no verdict."""

from __future__ import annotations

from collections import Counter

from distbench.analysis.job_results import INCONCLUSIVE
from distbench.analysis.run import RunAnalysis
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.core.text import one_line
from distbench.core.units import format_count


def missing_verdict_sentences(run: RunAnalysis) -> list[str]:
    """Sentence for each requested kind that judged no case, with the most frequent reason.

    An inconclusive judgement counts as judged. The timed losses are judged without a request.
    """
    sentences = []
    for kind in (kind for kind in run.verdict_kinds if kind != LOSS_VERDICT):
        verdicts = [row.verdicts[kind] for row in run.cases if kind in row.verdicts]
        if any(verdict.gravity != "unknown" or verdict.word == INCONCLUSIVE for verdict in verdicts):
            continue
        ((reason, count),) = Counter(one_line(verdict.sentence) for verdict in verdicts).most_common(1)
        of = "" if count == len(verdicts) else f" ({count} of them)"
        cases = format_count(len(verdicts), "case")
        sentences.append(f"{kind.capitalize()}: no verdict for any of {cases}: {reason}{of}.")
    return sentences
