"""``startup``: time before the first timed step, by phase and in all."""

from distbench.metrics.base import TrialData
from distbench.metrics.startup import Startup
from support import records


def test_the_start_is_that_of_the_rank_that_takes_longest_in_all():
    by_rank = {"launch": [1.0, 2.0], "start": [1.0, 0.5], "build": [4.0, 2.0], "warmup": [2.0, 2.5]}
    trial = TrialData(records.case("ddp", 2), 1, {}, {**by_rank, "time": [9.0, 9.0]})
    assert Startup().summary(trial) == {
        "launch_s": 2.0,
        "start_s": 1.0,
        "build_s": 4.0,
        "warmup_s": 2.5,
        # 8 and 7: no rank takes the longest of each phase
        "startup_s": 8.0,
    }
