"""The rules of STYLE that a reader relies on, as checks over the sources themselves."""
