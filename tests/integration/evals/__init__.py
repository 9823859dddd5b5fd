"""Run in `.venv-evals` of the Makefile, where Inspect, lm-eval and verifiers 0.4 are."""
