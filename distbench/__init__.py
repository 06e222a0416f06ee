"""distbench: benchmarks and diagnostics for distributed training."""

__version__ = "0.1.0"
