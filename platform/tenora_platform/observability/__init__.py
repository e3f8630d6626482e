"""What an operator sees: JSON logs, request ids, metrics, health. Never text of a prompt."""
