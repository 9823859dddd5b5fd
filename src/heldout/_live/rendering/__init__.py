"""Token ids of conversations, for any chat template.

chat_templates   the template of a transformers tokenizer as a function
segments         the tokens between two turns of a model
examine          which ways of making those tokens a template allows
"""
