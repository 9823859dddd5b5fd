"""Conversations to token ids: any chat template as a function, and those of transformers."""
