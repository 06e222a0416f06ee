"""Slurm of one job on this machine: sbatch runs the script at once, scontrol says what has become of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_SBATCH = """\
cat > script; echo "$@" > options
log() { sed -n "s/^#SBATCH --$1=//p" script | sed "s/%j/17/"; }
out="$(log output)" err="$(log error)" place="$(log chdir)"
echo RUNNING > state
(
  (
    cd "$place"
    SLURM_JOB_NODELIST='n[1-2]' SLURM_JOB_NUM_NODES=2 SLURM_JOB_CPUS_PER_NODE='1(x2)' \\
      exec bash "$OLDPWD/script" > "$out" 2> "$err"
  )
  code=$?
  [ $code = 0 ] && echo COMPLETED > state || echo "FAILED ExitCode=$code:0" > state
) > /dev/null 2>&1 < /dev/null &
echo 17
"""
_SCONTROL = """\
case "$*" in
  "show hostnames n[1-2]") printf 'n1\\nn2\\n';;
  "--oneliner show job 17") echo "JobId=17 JobState=$(cat state) Reason=None";;
  *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
esac
"""
_SRUN = """\
echo "srun: error: no agents here" >&2; exit 1
"""
_SCANCEL = """\
echo "$@" > cancelled
"""


def install(folder: Path, **others: str) -> Path:
    """Put its commands into *folder*, where they keep what they are told; *others* replace theirs."""
    scripts: Mapping[str, str] = {
        "sbatch": _SBATCH,
        "scontrol": _SCONTROL,
        "srun": _SRUN,
        "scancel": _SCANCEL,
        **others,
    }
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        program = folder / name
        program.write_text(f'#!/bin/bash\ncd "{folder}" || exit\n{script}')
        program.chmod(0o755)
    return folder
