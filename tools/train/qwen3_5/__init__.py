"""models/qwen3.5-tiny-4bit and its multi-token-prediction head."""
