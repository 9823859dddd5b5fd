"""Chat messages: as chat APIs have them, without reasoning, with tool calls parsed."""
