"""Suites with one mistake each, and what is said of it."""

from __future__ import annotations

import pytest

from support.suites import SuiteText

MINIMAL = SuiteText("""\
workload: transformer
batch: {global_batch_size: 8}
strategies: [ddp]
""")


MISTAKES = [
    ("batchh: 3", "mine.yaml:4: batchh = 3: unknown key; did you mean 'batch'?"),
    ("measure: {stepz: 10}", "mine.yaml:4: measure.stepz = 10: unknown key; did you mean 'steps'?"),
    ("measure: {steps: '10'}", "mine.yaml:4: measure.steps = '10': expected a whole number"),
    ("measure: {steps: 10.5}", "mine.yaml:4: measure.steps = 10.5: expected a whole number"),
    ("measure: {steps: 1e-1}", "mine.yaml:4: measure.steps = 0.1: expected a whole number"),
    ("measure: {steps: 1e9}", "mine.yaml:4: measure.steps = 1000000000.0: must be at most 1000000"),
    ("world_sizes: [1.5]", "mine.yaml:4: world_sizes[0] = 1.5: expected a whole number, 1 or more"),
    ("measure: {steps: 0}", "mine.yaml:4: measure.steps = 0: must be at least 1"),
    (
        "measure: {order: random}",
        "mine.yaml:4: measure.order = 'random': Allowed: interleaved, sequential",
    ),
    ("measure: 3", "mine.yaml:4: measure = 3: expected a mapping"),
    ("limits:\n  step: -1", "mine.yaml:5: limits.step = -1: must be above 0"),
    ("limits: {step: .inf}", "mine.yaml:4: limits.step = '.inf': a number must be finite"),
    ("device: gpu", "mine.yaml:4: device = 'gpu': did you mean 'cpu'?"),
    ("seed: yes", "mine.yaml:4: seed = 'yes': expected a whole number"),
    ("threads: many", "mine.yaml:4: threads = 'many': expected a whole number or auto"),
    ("world_sizes: [1, 1]", "mine.yaml:4: world_sizes[1] = 1: duplicate"),
    ("world_sizes: 2", "mine.yaml:4: world_sizes = 2: expected a list of whole numbers"),
    ("precision: fp32x", "mine.yaml:4: precision.compute = 'fp32x': did you mean 'fp32'?"),
    ("precision: {compute: bf16, loss_scale: 2}", "only fp16 has a loss scale"),
    ("optimizer: {name: adamw, momentum: 0.9}", "only sgd and muon have momentum, not adamw"),
    (
        "optimizer: {name: sgd, betas: [0.8, 0.9]}",
        "mine.yaml:4: optimizer.betas = [0.8, 0.9]: sgd has no such option (it has lr, momentum, "
        "weight_decay); remove it, or use one of: adamw, adam, muon, lion, lamb",
    ),
    ("optimizer: [{name: lion, eps: 1}, adamw]", "optimizer[0].eps = 1: lion has no such option (it has "),
    (
        "optimizer: {name: [sgd, adafactor], betas: [0.8, 0.9]}",
        "sgd has no such option (it has lr, momentum, ",
    ),
    ("include: [{optimizer.name: sgd, optimizer.eps: 1}]", "mine.yaml:4: include[0].optimizer.eps = 1: sgd"),
    ("optimizer: {lr: true}", "mine.yaml:4: optimizer.lr = true: expected a number"),
    ("optimizer: {betas: [0.9]}", "optimizer.betas = [0.9]: has the wrong number of items"),
    ("launcher: locale", "mine.yaml:4: launcher = 'locale': unknown; did you mean 'local'?"),
    ("metrics: [memry]", "mine.yaml:4: metrics[0] = 'memry': unknown; did you mean 'memory'?"),
    ("data: {txt: {}}", "mine.yaml:4: data = 'txt': unknown; did you mean 'text'?"),
    ("axes: {optimizer.lr: []}", "mine.yaml:4: axes.optimizer.lr: expected a list of"),
    (
        "axes: {optimizr.lr: [1]}",
        "axes.optimizr.lr = [1]: not a field of a case; did you mean 'optim",
    ),
    ("axes: {optimizer.lr: [1, x]}", "mine.yaml:4: axes.optimizer.lr[1] = 'x': expected a number"),
    ("optimizer: {lr: [1, -1]}", "mine.yaml:4: optimizer.lr[1] = -1: must be above 0"),
    ("include: [{optimizer.lrr: 1}]", "mine.yaml:4: include[0].optimizer.lrr = 1: unknown key"),
    ("exclude: [{world_sise: 1}]", "mine.yaml:4: exclude[0].world_sise = 1: not a field of a case"),
    pytest.param(
        "name: !!python/object:os.system ls",
        "mine.yaml:4: name: the YAML tag",
        marks=pytest.mark.drill("a suite with a YAML tag of Python"),
    ),
]


MISTAKES_IN_STRATEGIES = [
    ("[sinle]", "mine.yaml:3: strategies[0] = 'sinle': unknown; did you mean 'single'?"),
    ("[{zero: {stage: 4}}]", "mine.yaml:3: strategies[0].zero.stage = 4: Allowed: 0, 1, 2, 3"),
    ("[{zero: {stage: [1, 9]}}]", "mine.yaml:3: strategies[0].zero.stage[1] = 9: Allowed: 0, 1, 2, 3"),
    (
        "[ddp, {fsdp: {shardin: full}}]",
        "strategies[1].fsdp.shardin = 'full': unknown key; did you mean 'sharding'?",
    ),
    (
        "[{ddp: {bucket_cap_mb: 0}}]",
        "mine.yaml:3: strategies[0].ddp.bucket_cap_mb = 0: must be above 0",
    ),
    (
        "[{ddp: {bucket_cap_mb: [25, -1]}}]",
        "mine.yaml:3: strategies[0].ddp.bucket_cap_mb[1] = -1: must be above 0",
    ),
    (
        "[{fsdp: {sharding: hybrid, replicas: 0}}]",
        "mine.yaml:3: strategies[0].fsdp.replicas = 0: must be at least 1",
    ),
    (
        "[{zero: {reduce_bucket_size: 0}}]",
        "mine.yaml:3: strategies[0].zero.reduce_bucket_size = 0: must be at least 1",
    ),
    ("[{ddp: {}, fsdp: {}}]", "strategies[0] = {ddp: {}, fsdp: {}}: expected a name"),
    ("[]", "mine.yaml:3: strategies: empty"),
    ("ddp", "mine.yaml:3: strategies = 'ddp': expected a list"),
]
