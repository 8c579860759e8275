"""Speed beside a hand-written torch update and beside DI-engine: ``python -m tests.benchmarks``."""
