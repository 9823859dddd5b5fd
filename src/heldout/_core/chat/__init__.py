"""Chat messages, replies without their reasoning, and tool calls parsed out of replies."""
