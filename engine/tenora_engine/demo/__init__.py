"""The demo base model: SmolLM2-135M-Instruct out of a pip package, as a Hugging Face folder.

What lives here: finding the packaged GGUF file, checking it, and converting it once.
What does not: loading or serving the folder; any other model folder is served the same way.
"""
