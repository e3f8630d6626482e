"""OpenAI's chat and text completions: validate, admit, stream, settle."""
