"""Conversations to token ids: any template from the outside, and those of transformers."""
