"""State the verdicts on the cases of a run, and which are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.job_results import INCONCLUSIVE, Verdict
from distbench.analysis.losses.case_losses import NOT_COMPARABLE
from distbench.analysis.run import RunAnalysis
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.core.grouping import group_by
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, format_number
from distbench.record import Status

_MAX_SENTENCE_LENGTH = 600
"""Maximum length in characters of the sentence of a verdict."""
# maximum length of a sentence that a run prints once
_MAX_REMARK_LENGTH = 1000


def bad_verdict_sentences(run: RunAnalysis) -> list[str]:
    """Bad verdicts, one sentence for each kind and word; they end a run with exit code 1.

    A case that differs by design and converges worse is a result: the question was whether it would.
    """
    pairs = [
        (row, verdict)
        for row in run.cases
        for verdict in row.verdicts_of("bad")
        if not (verdict.confirms_by_outcome and row.unproven_design)
    ]
    return [
        f"{kind.capitalize()}: {word} in {len(same)} of {sum(kind in row.verdicts for row in run.cases)} "
        f"cases ({join_limited([one_line(row.case.name) for row, _ in same])})."
        for (kind, word), same in group_by(pairs, lambda pair: (pair[1].kind, pair[1].word)).items()
    ]


def verdict_sentences(run: RunAnalysis, kind: str) -> list[str]:
    """Verdicts of *kind*: a line for each word; bad and similar ones get a line for each case.

    Each of their remarks follows once.
    """
    judged = [(row, row.verdicts[kind]) for row in run.cases if kind in row.verdicts]
    alike = [verdict for _, verdict in judged if _is_groupable(verdict)]
    # a line about several cases must be true of each of them
    groups = group_by(alike, lambda verdict: (verdict.word, verdict.extent and verdict.extent[1])).values()
    return [
        *(_group_sentence(same, len(judged)) for same in groups),
        *_grouped_by_sentence([(row, verdict) for row, verdict in judged if not _is_groupable(verdict)]),
        *(one_line(remark, _MAX_REMARK_LENGTH) for remark in dict.fromkeys(_remarks(judged))),
    ]


def _is_groupable(verdict: Verdict) -> bool:
    """True if one line can cover several cases: good ones, and models that draw random numbers."""
    return verdict.gravity == "ok" or verdict.word == NOT_COMPARABLE


def _remarks(judged: Sequence[tuple[CaseSummary, Verdict]]) -> Iterator[str]:
    for _, verdict in judged:
        yield from verdict.remarks


def _group_sentence(verdicts: Sequence[Verdict], judged: int) -> str:
    first, many = verdicts[0], f"{len(verdicts)} of {format_count(judged, 'case')}"
    if len({verdict.sentence for verdict in verdicts}) == 1:
        return f"{one_line(first.sentence)}: {many}"
    extents = [verdict.extent for verdict in verdicts if verdict.extent]
    most = f", at most {_extent_text(*max(extents))}" if extents else f"; first: {first.sentence}"
    return one_line(f"{first.word}: {many}{most}")


def _extent_text(size: float, of_what: str) -> str:
    """``0.35 of the allowed deviation``, or far beyond it ``66,923 times`` it."""
    return (
        f"{size:.2f} {of_what}" if size < 10 else f"{format_number(size)} times {of_what.removeprefix('of ')}"
    )


def _grouped_by_sentence(judged: Sequence[tuple[CaseSummary, Verdict]]) -> Iterator[str]:
    for same in group_by(judged, lambda pair: (pair[1].sentence, pair[1].invalidates)).values():
        names = join_limited([one_line(row.case.name) for row, _ in same])
        verdict = same[0][1]
        excluded = "; not compared" if verdict.invalidates else ""
        yield f"{names}: {one_line(verdict.sentence, _MAX_SENTENCE_LENGTH)}{excluded}"


def unmeasured_sentences(run: RunAnalysis) -> list[str]:
    """A sentence if no case can run here; empty otherwise."""
    if not run.cases or any(row.status != Status.UNSUPPORTED for row in run.cases):
        return []
    return ["No case could be measured: all are unsupported here."]


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
