"""Bugs of one line, and the tests that are expected to see each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One bug."""

    name: str
    old: str
    """Text that stands once in all of ``distbench``, in whichever file."""
    new: str
    tests: tuple[str, ...]
    """What pytest is told to run: files, ids, ``-k`` expressions."""


def _in(file: str, select: str = "") -> tuple[str, ...]:
    return (f"tests/{file}.py", *(("-k", select) if select else ()))


STRATEGIES = _in("integration/test_strategies", "fp32")
MUTANTS = (
    # engines
    Mutant(
        "accumulated gradients are not averaged",
        "(loss if self._divisor == 1 else loss / self._divisor).backward()",
        "loss.backward()",
        STRATEGIES,
    ),
    Mutant(
        "gradients are clipped at twice the limit",
        "self.clip(self._clip)",
        "self.clip(2 * self._clip)",
        # AdamW takes the same step from gradients of any scale; the check trains with SGD, too
        _in("integration/test_equivalence", "honest and fp32"),
    ),
    Mutant(
        "betas are those of torch",
        '{"lr": spec.lr, "betas": tuple(spec.betas), ',
        '{"lr": spec.lr, "betas": (0.9, 0.999), ',
        _in("integration/test_run"),
    ),
    Mutant(
        "ddp reduces each micro-batch",
        "return nullcontext() if last else self.module.no_sync()",
        "return nullcontext()",
        STRATEGIES,
    ),
    Mutant(
        "ddp reduces nothing",
        "return nullcontext() if last else self.module.no_sync()",
        "return self.module.no_sync()",
        _in("integration/test_run"),
    ),
    Mutant(
        "every rank gets the first rows",
        "self._rows = range(context.data_parallel_rank * share, (context.data_parallel_rank + 1) * share)",
        "self._rows = range(share)",
        _in("integration/test_run"),
    ),
    Mutant(
        "after an average, too, only the mean of replicas is seen",
        "return local <= 0 or (local - 1) % ddp.local_sgd_period == 0",
        "return local <= 0",
        _in("unit/strategies/test_lossy", "replicas_are_equal"),
    ),
    # read-back
    Mutant(
        "another engine passes for the one asked for",
        "if expected not in classes:",
        "if not classes:",
        _in("integration/test_plugins", "mismatch"),
    ),
    Mutant(
        "the dtype of the reduction is not compared",
        '"dtypes.reduce": case.precision.reduce,',
        "",
        _in("unit/analysis/test_parity", "has_no_numbers"),
    ),
    Mutant(
        "ranks that train apart have the same norm",
        "_NORM_TOLERANCE = 1e-3",
        "_NORM_TOLERANCE = 1e3",
        _in("unit/core/test_dropped_in_plugins", "apart"),
    ),
    Mutant(
        "ranks with the same rows pass",
        "if twin < first:",
        "if twin > rank:",
        _in("integration/test_plugins", "same_data"),
    ),
    Mutant(
        "a schedule that nobody asked for is not looked at",
        "if is_told or lr_schedule.is_scheduled(case.optimizer):",
        "if schedule.is_scheduled(case.optimizer):",
        _in("unit/analysis/test_parity", "has_no_numbers"),
    ),
    Mutant(
        "the steps of a warm-up are observed",
        'if name not in ("warmup", "time") and (around',
        'if name != "time" and (around',
        _in("unit/analysis/test_timed_losses", "nobody_looks and fp32"),
    ),
    Mutant(
        "no timed loss is kept",
        'delivery.samples["loss"], delivery.passes["loss"] = [*timed], "time"',
        'delivery.passes["loss"] = "time"',
        _in("unit/analysis/test_timed_losses", "nobody_looks and fp32"),
    ),
    # collect
    Mutant(
        "a value is that of the slowest step",
        "steps = [over(step) for step in zip(*complete, strict=True)]",
        "steps = [max(over(step) for step in zip(*complete, strict=True))]",
        _in("integration/test_run", "mean_over_the_steps"),
    ),
    Mutant(
        "a loss that is not a number is measured",
        "    if not affected:\n",
        "    if True:\n",
        _in("integration/test_faults", "not_a_number"),
    ),
    # watch
    Mutant(
        "somebody is blamed for a hang of all",
        "return slow[0] if len(slow) < len(places) else None",
        "return slow[0]",
        _in("integration/test_faults", "deadline"),
    ),
    Mutant(
        "a rank that leaves has delivered",
        "gone = rank in self._exits and not self._has_delivered(rank)",
        "gone = False",
        _in("integration/test_faults", "all_leave"),
    ),
    Mutant(
        "a kill for want of memory is a crash",
        "return memory is not None and memory.oom_kills > 0",
        "return False",
        _in("unit/system/test_out_of_memory"),
    ),
    Mutant(
        "gloo listens on a network",
        "return {**gpus, **{name: LOOPBACK for name in INTERFACE_VARIABLES if name not in os.environ}}",
        "return gpus",
        _in("unit/launchers/test_loopback"),
    ),
    Mutant(
        "an interface that gloo can't use is not refused",
        "raise NodesUnavailableError(str(error)) from error",
        "pass",
        _in("unit/launchers/test_loopback"),
    ),
    Mutant(
        "what left its session outlives its trial",
        "kill_children(exclude=self._own_children)",
        "pass",
        _in("unit/launchers/test_warm_parent", "what_left"),
    ),
    Mutant(
        "a log grows without end",
        "if file.stat().st_size > MAX_LOG_BYTES:",
        "if False:",
        _in("unit/system/test_logs"),
    ),
    Mutant(
        "the end of a log is lost when it is cut",
        "end += os.pwrite(descriptor, part, end)",
        "end += os.pwrite(descriptor, part[:1], end)",
        _in("unit/system/test_logs"),
    ),
    Mutant(
        "a sign of life is not seen",
        "if sign != self._last_progress[rank][0]:",
        "if False:",
        _in("unit/run/test_hangs"),
    ),
    Mutant(
        "a strategy is prepared once for all its cases",
        'return f"strategy {case.label} ({case.id})" if has_own else ""',
        'return f"strategy {case.label}" if has_own else ""',
        _in("unit/run/test_prepare"),
    ),
    Mutant(
        "SIGTERM ends the writing of results without a word",
        "_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)",
        "_SIGNALS = (signal.SIGINT, signal.SIGHUP)",
        _in("unit/record/test_owner", "last_trial"),
    ),
    Mutant(
        "a mismatch is a crash",
        "Mismatch.__name__: Status.MISMATCH,",
        '"mismatch": Status.MISMATCH,',
        _in("integration/test_plugins", "mismatch"),
    ),
    # judging
    Mutant(
        "twice the tolerance of what is counted",
        '"regressed" if ratio > 1 + limit',
        '"regressed" if ratio > 1 + 2 * limit',
        _in("unit/gate/test_gate_judging"),
    ),
    Mutant(
        "efficiency is the product of two costs",
        "[many - single for many, single in both]",
        "[many + single for many, single in both]",
        _in("unit/gate/test_gate_judging"),
    ),
    Mutant(
        "a dilution is a regression",
        "if pace.high is not None and pace.high < 1:",
        "if pace.high is not None and pace.high < 0:",
        _in("unit/gate/test_gate_judging"),
    ),
    Mutant(
        "a gain of one device is a regression",
        'if pace.ratio is None or efficiency.ratio is None or pace.word == "regressed":',
        'if pace.ratio is None or efficiency.ratio is None or pace.word == "pass":',
        _in("unit/gate/test_gate_judging"),
    ),
    Mutant(
        "the losses of the arms are not compared",
        "return [_different_training(gap, demand, len(pairs))]",
        "return []",
        _in("unit/gate/test_gate_losses"),
    ),
    Mutant(
        "a launch that worked at the second try is forgotten",
        "launches.failures += self.failures.take_unreported(arm, record.case_id, record.round)",
        "launches.failures += []",
        _in("unit/gate/test_gate_failures"),
    ),
    Mutant(
        "an improvement needs no second series",
        "return finding.word in _NEED_CONFIRMATION and finding.low is not None",
        'return finding.word == "regressed" and finding.low is not None',
        _in("unit/gate/test_gate_judging"),
    ),
    Mutant(
        "an interval that holds 1 regresses",
        "if mean - half > 0 and mean >= rule.limit:",
        "if mean + half > 0 and mean >= rule.limit:",
        (*_in("unit/gate/test_gate_statistics"), "tests/unit/gate/test_gate_judging.py"),
    ),
    Mutant(
        "an interval is half as wide",
        "* deviation / math.sqrt(pairs)",
        "* deviation / math.sqrt(4 * pairs)",
        _in("unit/gate/test_gate_statistics"),
    ),
    # envelope and checkpoints
    Mutant(
        "no distance is far",
        "np.where(distances == 0, 0.0, distances / scales)",
        "np.where(distances >= 0, 0.0, distances / scales)",
        _in("unit/jobs/test_equivalence_verdicts", "named or far_outside"),
    ),
    Mutant(
        "rounding has no margin",
        "_MARGIN * np.exp(logs.mean(axis=1) + far)",
        "_MARGIN * np.exp(logs.mean(axis=1) - far)",
        _in("unit/jobs/test_equivalence_verdicts", "by_rounding"),
    ),
    Mutant(
        "an arm that broke down is left out",
        "counted = [arm for arm in arms if arm.is_counted] or arms",
        "counted = [arm for arm in arms if arm.word != NOT_CHECKED] or arms",
        _in("unit/jobs/test_envelope", "broke_down"),
    ),
    Mutant(
        "a case needs no training of its own",
        "return self.is_asked or self.can_run",
        "return self.can_run",
        _in("unit/jobs/test_envelope", "without_the_training"),
    ),
    Mutant(
        "a random number excuses a strategy",
        "if all(timed.draws_random_numbers for timed in peers) and",
        "if any(timed.draws_random_numbers for timed in peers) and",
        _in("unit/analysis/test_timed_losses", "only_a_strategy"),
    ),
    Mutant(
        "buffers are not looked at",
        'if not (hides_buffers and place.family == "buffer")',
        'if place.family != "buffer"',
        _in("unit/jobs/test_envelope", "buffer"),
    ),
    Mutant(
        "a lost optimizer state is not looked at",
        'and (sees_moments or of == "parameter")]',
        'and of == "parameter"]',
        (*_in("unit/jobs/test_continuations"), "tests/integration/test_checkpoint.py"),
    ),
    # volume
    Mutant(
        "half of the gathers are expected",
        "passes = 2 * self._record.case.batch.gradient_accumulation_steps",
        "passes = self._record.case.batch.gradient_accumulation_steps",
        _in("integration/test_communication", "textbooks"),
    ),
    Mutant(
        "norms are payload",
        "for op, size in self._sum_by_op(SCALAR_BYTES).items():",
        "for op, size in self._sum_by_op(0).items():",
        _in("integration/test_communication", "textbooks"),
    ),
    Mutant(
        "a surplus of gathers is explained whatever its size",
        "elements = 2 * min(in_a_pass, parameters)",
        "elements = 2000 * parameters",
        _in("unit/strategies/test_descriptions"),
    ),
    # judgements
    Mutant(
        "steps of a trial are independent",
        "variance *= _variance_inflation(n, _autocorrelation(values))",
        "variance *= 1.0",
        _in("unit/metrics/test_drift"),
    ),
    Mutant(
        "one trial decides for its case",
        "math.fsum(map(_NORMAL.inv_cdf, bounded)) / math.sqrt(len(bounded))",
        "min(map(_NORMAL.inv_cdf, bounded))",
        _in("unit/metrics/test_drift"),
    ),
    Mutant(
        "chances of many cases are those of one",
        "min(1.0, (len(p_values) - rank) * p_values[place])",
        "p_values[place]",
        _in("unit/jobs/test_convergence", "not train"),
    ),
    Mutant(
        "what is not worse converges",
        "if slower > asked.max_slowdown:",
        "if slower > 1e9:",
        _in("unit/jobs/test_convergence", "little"),
    ),
    Mutant(
        "what ends worse converges",
        "if worse > asked.max_worse:",
        "if worse > 1e9:",
        _in("unit/jobs/test_convergence", "little"),
    ),
    Mutant(
        "days do not differ",
        "half_log_width=known.half_log_width(CONFIDENCE),",
        "half_log_width=ratio.half_log_width,",
        _in("unit/analysis/test_comparison", "days"),
    ),
    Mutant(
        "a bad day is a level",
        "is_outlier = distances > max(",
        "is_outlier = distances > 1e9 + max(",
        _in("unit/analysis/test_change_points"),
    ),
    Mutant(
        "a decline is a step",
        "return flat - sloped < max(",
        "return False and max(",
        _in("unit/analysis/test_change_points", "decline"),
    ),
    # memory kinds
    Mutant(
        "tied and viewed storages are booked twice",
        'if not storage.nbytes() or device == "meta" or place in self._seen:',
        'if not storage.nbytes() or device == "meta":',
        _in("integration/test_memory", "fp32"),
    ),
    Mutant(
        "gradients in their buckets are booked twice",
        'sum(map(int, sizes.split(","))) - inside)',
        'sum(map(int, sizes.split(","))))',
        _in("integration/test_memory", "buckets"),
    ),
    Mutant(
        "optimizer states are not sharded in theory",
        '"optimizer_state": parameters * state / of_optimizer,',
        '"optimizer_state": parameters * state,',
        _in("integration/test_memory", "theory"),
    ),
    # pipelines, and checkpoints into another mesh
    Mutant(
        "the thread of messages is taken for the backend's own",
        "event.thread for event in self.host_calls",
        "event.thread for event in ()",
        _in("unit/metrics/test_trace", "message"),
    ),
    Mutant(
        "DeepSpeed's pipeline updates twice",
        "schedule.OptimizerStep: lambda _engine: None,",
        "",
        STRATEGIES,
    ),
    Mutant(
        "the norm of DeepSpeed's pipeline is that of a stage",
        "dist.all_reduce(squares, group=self._group)",
        "pass",
        STRATEGIES,
    ),
    Mutant(
        "no shards go into another strategy directly",
        "if self._options.directly and shards.is_dir():",
        "if False and shards.is_dir():",
        _in("integration/test_checkpoint", "directly and fp32"),
    ),
    # models that are split
    Mutant(
        "ranks that split a copy of the model get different samples",
        "return self.group_rank(rank, [name for name in self.sizes if name not in MODEL_DIMENSIONS])",
        "return rank % self.data_ranks",
        _in("unit/strategies/test_tensor_parallel", "mistakes_in_it"),
    ),
    Mutant(
        "gradients of a split model stay partial sums",
        "            parameter.grad = gradient.redistribute(placements=parameter.placements)\n\n",
        "            gradient._spec = parameter._spec\n\n",
        _in("unit/strategies/test_tensor_parallel", "mistakes_in_it"),
    ),
    Mutant(
        "parts of a sequence count alike, however many labels they have",
        "return loss * (mine.double() * self.group.size() / all_ranks).to(loss)",
        "return loss",
        _in("unit/strategies/test_context_parallel", "mistakes_of"),
    ),
    Mutant(
        "gradients of experts are sums over ranks",
        "gradient.div_(self._context.world_size)",
        "gradient.div_(1)",
        _in("unit/strategies/test_mixture", "mistakes"),
    ),
    Mutant(
        "what moves over another dimension than theory has it over is not told",
        "        if moved > UNEXPLAINED_TOLERANCE * math.fsum(each.theory or 0.0 for each in same):",
        "        if moved < 0:",
        _in("unit/strategies/test_mesh_dimensions"),
    ),
    # choice
    Mutant(
        "the slowest is the best",
        'return cautious if goal == "tokens-per-joule" else -cautious',
        "return cautious",
        _in("unit/analysis/test_choice"),
    ),
    Mutant(
        "nothing has the memory of the leanest",
        "less * (1 + MEMORY_TOLERANCE)",
        "less * (1 - MEMORY_TOLERANCE)",
        _in("unit/analysis/test_choice"),
    ),
    Mutant(
        "the leanest must be faster than the fastest",
        "default=0.0) * (1 - requirements.within)",
        "default=0.0) * (1 + requirements.within)",
        _in("unit/analysis/test_choice"),
    ),
    # gate
    Mutant(
        "the baseline always goes first",
        "arms = (_CANDIDATE, _BASELINE) if candidate_first else (_BASELINE, _CANDIDATE)",
        "arms = (_BASELINE, _CANDIDATE)",
        _in("unit/gate/test_gate_series"),
    ),
    Mutant(
        "a failed trial is not repeated",
        "if record.status.is_failure and record.status is not Status.CANCELLED:",
        "if record.status is Status.CANCELLED:",
        _in("unit/gate/test_gate_series"),
    ),
    Mutant(
        "other work is compared",
        "elif unequal := _pairing_problem(mate, own):",
        "elif unequal := _pairing_problem(own, own):",
        _in("unit/gate/test_gate_rules"),
    ),
    # resume
    Mutant(
        "a gate that goes on makes all again",
        "record = (runner.stored_record(task) if keep else None) or runner.run(task, keep=keep)",
        "record = runner.run(task, keep=keep)",
        _in("unit/gate/test_gate_series"),
    ),
    Mutant(
        "what was stopped counts as made",
        "_UNFINISHED = (None, Status.CANCELLED)",
        "_UNFINISHED = (None,)",
        _in("integration/test_faults", "ctrl_c"),
    ),
    # what a pick rests on
    Mutant(
        "what a round did to all cases stays in the noise",
        "within = in_round - shares[case]",
        "within = 0 * (in_round - shares[case])",
        _in("unit/analysis/test_noise"),
    ),
    Mutant(
        "no case is noisier than the others",
        "_SHARES = np.array([0.03, 0.1, 0.2])",
        "_SHARES = np.array([1e-9])",
        _in("unit/analysis/test_noise", "noisier"),
    ),
    Mutant(
        "the reference is never noisier than the cases",
        "sides = [arm, 0]",
        "sides = [arm, arm]",
        _in("unit/jobs/test_convergence", "noisier"),
    ),
    Mutant(
        "each case has its own spread alone",
        "behind = np.interp(-far / near, -theirs[1] / theirs[0], _DEGREES_OF_FREEDOM_GRID)",
        "behind, near = freedoms, np.sqrt(variances) * special.stdtrit(freedoms, 0.975)",
        _in("unit/analysis/test_noise"),
    ),
    Mutant(
        "the simplest of a tie is taken, however slow",
        "least, most = best * (1 - requirements.margin)",
        "least, most = best * (0 - requirements.margin)",
        _in("unit/analysis/test_choice"),
    ),
    Mutant(
        "every look has the whole risk",
        "risk = (1 - CONFIDENCE) / (round_number * (round_number + 1))",
        "risk = 1 - CONFIDENCE",
        _in("unit/run/test_settling"),
    ),
    # the cache, and what a killed process left
    Mutant(
        "a library that cannot be loaded is used",
        "if library.exists() and not load_error(library):",
        "if library.exists():",
        _in("unit/run/test_cache_faults", "damaged"),
    ),
    Mutant(
        "a temporary folder outlives a killed process for good",
        "if _NAME.fullmatch(entry.name):",
        "if not _NAME:",
        _in("unit/gate/test_gate_faults", "killed"),
    ),
    # collectives
    Mutant(
        "a wrong result of a collective is not seen",
        "return int((self.buffers[-1] != self._expected()).sum())",
        "return 0",
        _in("unit/jobs/test_collectives", "not_there"),
    ),
    Mutant(
        "busbw of a collective is its algbw",
        '"busbw": algbw * (bus_factor(op, members.size) or 1.0),',
        '"busbw": algbw,',
        _in("unit/jobs/test_collectives", "measured_and_right"),
    ),
    Mutant(
        "of several nodes the fastest counts",
        'key=lambda item: -item[1]["busbw"])',
        'key=lambda item: item[1]["busbw"])',
        _in("unit/jobs/test_collectives", "slowest_node"),
    ),
    Mutant(
        "a gate takes more bandwidth for a loss",
        'sign = -1 if pairs[0][1].columns[name]["better"] == "higher" else 1',
        "sign = 1",
        _in("unit/jobs/test_collectives", "gate_compares"),
    ),
    # traces
    Mutant(
        "the rank that spends the longest time in a collective is the late one",
        "late = min(parts, key=lambda rank: parts[rank].seconds)",
        "late = max(parts, key=lambda rank: parts[rank].seconds)",
        _in("unit/analysis/traces/test_job_trace"),
    ),
    Mutant(
        "a step of a trace has the work that was launched before it",
        "known = [event for event in work if event.launch_thread is not None] or work",
        "known = work",
        _in("unit/analysis/traces/test_job_trace"),
    ),
    Mutant(
        "a gap after a synchronisation is the host's fault",
        'cause: IdleCause = "host" if blocking is None else "synchronisation"',
        'cause: IdleCause = "host"',
        _in("unit/analysis/traces/test_job_trace"),
    ),
    Mutant(
        "causes of a change are summed over steps",
        "math.fsum(parts) / len(of_steps) for cause, parts in found.items()",
        "math.fsum(parts) for cause, parts in found.items()",
        _in("unit/analysis/traces/test_job_trace"),
    ),
    # runs in Python
    Mutant(
        "the package run takes the place of the function",
        'return __getattr__("run")',
        'return importlib.import_module("distbench.run")',
        _in("unit/api/test_run_results", "whoever_has_imported"),
    ),
    Mutant(
        "a run is not read again after a file turned out to be damaged",
        "vars(run).pop(derived, None)",
        "vars(run).get(derived)",
        _in("unit/api/test_run_results", "other_content"),
    ),
    Mutant(
        "a figure of two cases has the marks of all",
        'for trace in (each for each in figure["data"] if each["meta"] == place):',
        'for trace in figure["data"]:',
        _in("unit/api/test_run_results", "choice_of_cases"),
    ),
    Mutant(
        "integers with an absent one are rounded to floats",
        '"BIGINT": ColumnTypes("Int64", "Int64", "int64")',
        '"BIGINT": ColumnTypes("float64", "Float64", "float64")',
        _in("unit/api/test_frames", "integers_are_exact"),
    ),
    Mutant(
        "check=True replaces the section of the suite",
        "if value is True and key in kinds]",
        "if value is None and key in kinds]",
        _in("unit/api/test_suite_run", "options_that_repeat_them"),
    ),
    Mutant(
        "a notebook gets a line for each trial",
        "if not quiet and _in_notebook():",
        "if not quiet and not _in_notebook and _in_notebook():",
        _in("unit/api/test_notebook", "one_output"),
    ),
    Mutant(
        "a mistake of a mapping has a line of a file",
        "if self.file and self.line else self.file",
        "if self.line else self.file",
        _in("unit/api/test_suite_run", "allowed_values_named"),
    ),
    # picker.js
    Mutant(
        "picker: the widest interval decides",
        "Math.hypot(one[2], other[2])",
        "Math.max(one[1], other[1])",
        _in("browser/test_picker_browser"),
    ),
    Mutant(
        "picker: the most complicated is picked",
        "one.simplicity < best.simplicity",
        "one.simplicity > best.simplicity",
        _in("browser/test_picker_browser"),
    ),
    Mutant(
        "picker: a tenth of the fastest is near it",
        "* (1 - wish.within);",
        "* wish.within;",
        _in("browser/test_picker_browser"),
    ),
)
