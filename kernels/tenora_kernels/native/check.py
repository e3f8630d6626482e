"""Runs one product of every kind in a fresh build and compares it with plain Python.

`python check.py LIBRARY` exits with 0 when all agree. It imports nothing but the standard
library, so that it starts at once and only the build can fail it.
"""

import ctypes
import random
import struct
import sys

ROWS, COLUMNS, INNER = 7, 37, 19
TOLERANCE = 1e-4
FLOAT32, BFLOAT16, FLOAT16, INT8 = 0, 1, 2, 4


class _Packed(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    )


def encode(kind: int, values: list[float]) -> bytes:
    """`values`, exact in every kind, as elements of the kind."""
    if kind == BFLOAT16:
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    if kind == INT8:
        return struct.pack(f"<{len(values)}b", *(round(64 * value) for value in values))
    return struct.pack(f"<{len(values)}{'f' if kind == FLOAT32 else 'e'}", *values)


def product_error(library: ctypes.CDLL, kind: int, *, rounds: bool) -> float:
    """The largest difference of x W^T from plain sums. All values are exact in bfloat16."""
    rng = random.Random(kind)  # noqa: S311 - test data
    x = [rng.randrange(-64, 64) / 64 for _ in range(ROWS * INNER)]
    w = [rng.randrange(-64, 64) / 64 for _ in range(COLUMNS * INNER)]
    library.tn_packed_bytes.restype = ctypes.c_int64
    size = library.tn_packed_bytes(*map(ctypes.c_int64, (kind, COLUMNS, INNER)))
    packed = ctypes.create_string_buffer(size)
    source = ctypes.create_string_buffer(encode(kind, w))
    steps = (ctypes.c_float * COLUMNS)(*[1 / 64] * COLUMNS)  # one group of k
    library.tn_pack(
        ctypes.c_int64(kind), source, steps, ctypes.c_int64(COLUMNS), ctypes.c_int64(INNER), packed
    )
    matrix = _Packed(kind, COLUMNS, INNER, ctypes.addressof(packed))
    x_array = (ctypes.c_float * len(x))(*x)
    y_array = (ctypes.c_float * (ROWS * COLUMNS))()
    library.tn_linear(
        ctypes.byref(matrix),
        None,
        x_array,
        ctypes.c_int64(INNER),
        y_array,
        ctypes.c_int64(COLUMNS),
        ctypes.c_int64(ROWS),
        ctypes.c_int64(0),
        ctypes.c_int64(rounds),
    )
    return max(
        abs(
            y_array[row * COLUMNS + column]
            - sum(x[row * INNER + i] * w[column * INNER + i] for i in range(INNER))
        )
        for row in range(ROWS)
        for column in range(COLUMNS)
    )


class _Screen(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int64), ("k", ctypes.c_int64), ("data", ctypes.c_void_p))


def choice_is_right(library: ctypes.CDLL) -> bool:
    """Whether the largest output of each row is found through a screen."""
    rng = random.Random(9)  # noqa: S311 - test data
    x = [rng.randrange(-64, 64) / 64 for _ in range(ROWS * INNER)]
    w = [rng.randrange(-64, 64) / 64 for _ in range(COLUMNS * INNER)]
    sizes = (ctypes.c_int64(COLUMNS), ctypes.c_int64(INNER))
    source = ctypes.create_string_buffer(encode(FLOAT32, w))
    packed = ctypes.create_string_buffer(library.tn_packed_bytes(ctypes.c_int64(FLOAT32), *sizes))
    library.tn_pack(ctypes.c_int64(FLOAT32), source, None, *sizes, packed)
    rounded = ctypes.create_string_buffer(library.tn_screen_bytes(*sizes))
    library.tn_pack_screen(ctypes.c_int64(FLOAT32), source, None, *sizes, rounded)
    screen = _Screen(COLUMNS, INNER, ctypes.addressof(rounded))
    matrix = _Packed(FLOAT32, COLUMNS, INNER, ctypes.addressof(packed))
    x_array = (ctypes.c_float * len(x))(*x)
    left_out = (ctypes.c_uint8 * COLUMNS)()
    index, panels = (ctypes.c_int64 * ROWS)(), (ctypes.c_int64 * ROWS)()
    is_finite = (ctypes.c_uint8 * ROWS)()
    pointers = (screen, matrix, x_array, left_out, index, is_finite, panels)
    at = [ctypes.addressof(pointer) for pointer in pointers]
    arguments = (ctypes.c_int64 * 10)(*at[:3], INNER, ROWS, 0, *at[3:])
    library.tn_largest_outputs(arguments)
    for row in range(ROWS):
        outputs = [
            sum(x[row * INNER + i] * w[column * INNER + i] for i in range(INNER))
            for column in range(COLUMNS)
        ]
        if outputs[index[row]] < max(outputs) - TOLERANCE or not is_finite[row]:
            return False
    return True


def main() -> int:
    library = ctypes.CDLL(sys.argv[1])
    for threads in (1, 2):
        library.tn_set_threads(ctypes.c_int64(threads))
        for kind in (FLOAT32, BFLOAT16, FLOAT16, INT8):
            if not library.tn_has_kind(ctypes.c_int64(kind)):
                continue
            exact = product_error(library, kind, rounds=False)
            error = max(exact, product_error(library, kind, rounds=True))
            if not error <= TOLERANCE:
                print(f"a product of kind {kind} is wrong by {error}", file=sys.stderr)  # noqa: T201
                return 1
        if library.tn_has_screens() and not choice_is_right(library):
            print("the largest output of a product is not found", file=sys.stderr)  # noqa: T201
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
