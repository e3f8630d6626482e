"""Products, attention and small operators of the CPU in C++, built on the machine that runs them.

`build.py` compiles `src/` once per machine and tries the result in a child process, `library.py`
loads it. Where there is no compiler the torch twins run instead: slower, same meaning.
"""
