"""Rebuild a damaged ``run.json`` from the records and the suite."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from distbench import plan
from distbench.core.errors import RecordError, RecordFormatError, UsageError
from distbench.core.job import MEASURE
from distbench.plan import PlannedCase
from distbench.record import Record, records_of_kind
from distbench.record.record_reader import DamagedTrial, RunContents
from distbench.record.run_folder import RUN_FILE, Run, RunInfo
from distbench.suite import load_suite

UNKNOWN_VERSION = "unknown"
_FOLDER_STAMP = re.compile(r"-\d{8}-\d{6}Z-[0-9a-f]{8}$")


def describe_run(run: Run, contents: RunContents) -> RunInfo:
    """Read ``run.json`` of *run*, or rebuild its content from *contents* if it is damaged.

    The damage is then added to that of *contents*.

    Raises:
        UsageError: this is not the folder of a run.
        RecordError: ``run.json`` can't be read, and no record can.
        RecordFormatError: only another version of distbench reads it.
    """
    try:
        return run.info()
    except RecordFormatError:
        raise
    except RecordError as error:
        if not contents.stored or not run.folder.exists():
            raise
        contents.damaged.insert(0, DamagedTrial(RUN_FILE, str(error).replace(f"{run.folder}/", "")))
        return _info_from_records(run.folder, contents.records)


def rebuild_info(run: Run) -> RunInfo:
    """Rebuild ``run.json`` of *run* from the suite as written and the records, to resume the run.

    Changes of the suite by the command line are lost.

    Raises:
        UsageError: no record can be read, or the suite as it is written has other cases.
    """
    records = run.records()
    if not records:
        raise UsageError("none of its records can be read")
    suite = load_suite(run.folder / "suite.yaml", is_stored=True)
    for kind in dict.fromkeys(record.job.kind for record in records):
        if kind not in (MEASURE, *suite.jobs):
            suite = suite.with_job(kind)
    cases = plan.make_plan(suite).cases
    known = {item.case.id for item in cases}
    if strange := [
        record.case.name for record in records_of_kind(records, MEASURE) if record.case_id not in known
    ]:
        raise UsageError(
            f"suite.yaml has no case {strange[0]:.100}: it comes from command-line options or from "
            "another machine"
        )
    info = _info_from_records(run.folder, records)
    return dataclasses.replace(info, suite_name=suite.name, suite=suite.to_resolved(), cases=cases)


def _info_from_records(folder: Path, records: Sequence[Record]) -> RunInfo:
    timed = records_of_kind(records, MEASURE)
    return RunInfo(
        run_id=records[0].run_id,
        suite_name=_FOLDER_STAMP.sub("", folder.resolve().name),
        version=UNKNOWN_VERSION,
        created=min(record.started for record in records),
        state="interrupted",
        command=[],
        suite={},
        machine={},
        cases=[PlannedCase(case) for case in {record.case_id: record.case for record in timed}.values()],
    )
