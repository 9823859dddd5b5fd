"""A transformers model in this process: rendered, decoded, hashed, copied, and left as it was.

In goes a model that may be in training; out come tokens and likelihoods of its weights. When an
eval needs it, and what becomes of the tokens, is decided above.
"""
