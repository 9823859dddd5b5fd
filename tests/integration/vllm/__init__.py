"""Run in `.venv-vllm` of the Makefile, where vLLM for a CPU is."""
