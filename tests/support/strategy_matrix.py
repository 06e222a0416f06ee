"""Suites that measure every strategy once, for all tests of honest measurements."""

from __future__ import annotations

READERS = ("test_communication.py", "test_memory.py", "test_parity.py", "test_strategies.py")
"""Files whose tests read the runs: one worker has them all, so that each run is made once."""

# many small matrices of equal size: what pads a shard, or lies in two, is less than 1 % of the model.
# At the default learning rate of 1e-3 a gradient norm after six steps amplifies rounding a thousandfold,
# on the text of one Python (3.11.2) and not of another.
COMMON = """
workload:
  transformer: {dim: 96, depth: 4, heads: 4, kv_heads: 4, ffn_dim: 96, vocab_size: 256, seq_len: 8}
data: text
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
optimizer: {lr: 3e-4, clip_grad_norm: 0.5, weight_decay: 0.1}
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 1}
limits: {step: 60, build: 120}
launcher: {kept: {oversubscribe: true}}
"""

SUITES = {
    # every strategy; and what has groups, or shards that more than two ranks hold, on four
    "fp32": f"""{COMMON}
world_sizes: [2]
strategies:
  - single
  - ddp: {{sharded_optimizer: [false, true]}}
  - fsdp: {{sharding: [full, grad_op, hybrid]}}
  - fsdp: {{version: 1, sharding: [full, grad_op, hybrid]}}
  - fsdp: {{cpu_offload: true}}
  - fsdp: {{reduce_each_micro_batch: false}}
  - zero: {{stage: [0, 1, 2, 3]}}
  - zero: {{stage: 2, offload_optimizer: cpu}}
  - zero: {{stage: 3, offload_optimizer: cpu, offload_parameters: cpu}}
  - zero: {{hpz_partition_size: 2}}
  - zero: {{stage: 1, mesh: {{tp: 2}}}}
  - zero: {{stage: 1, mesh: {{pp: 2}}, micro_batches: 8}}
  - tp
  - tp: {{sequence_parallel: true, loss_parallel: true}}
  - fsdp: {{mesh: {{tp: 2}}, sequence_parallel: true}}
include:
  - {{strategy: fsdp-hybrid, world_size: 4}}
  - {{strategy: fsdp1-hybrid, world_size: 4}}
  - {{strategy: "zero3+hpz2", world_size: 4}}
  - {{strategy: "fsdp+tp2+sp", world_size: 4}}
  # which accumulates over micro-batches of its own alone
  - {{strategy: "zero1+pp2", world_size: 2, batch: {{global_batch_size: 8, micro_batch_size: 8}}}}
exclude:
  - {{strategy: fsdp-hybrid, world_size: 2}}
  - {{strategy: "fsdp+tp2+sp", world_size: 2}}
  - {{strategy: "zero3+hpz2", world_size: 2}}
""",
    # what keeps or moves its numbers in other dtypes than ddp, and activations computed twice
    "bf16": f"""{COMMON}
world_sizes: [2]
precision: bf16
activation_checkpointing: full
strategies:
  - single
  - ddp
  - fsdp: {{version: [2, 1]}}
  - zero: {{stage: [0, 1, 2, 3]}}
  - tp: {{sequence_parallel: true}}
""",
}
