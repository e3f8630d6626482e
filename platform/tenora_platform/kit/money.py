"""Integer arithmetic for money. Amounts are nano-USD everywhere; no float ever holds one."""

NANOUSD_PER_USD = 1_000_000_000


def round_half_even(numerator: int, denominator: int) -> int:
    """`numerator / denominator` rounded once to the nearest integer, ties to the even one.

    Exact for integers of any size. Raises ValueError unless `denominator` is positive.
    """
    if denominator <= 0:
        raise ValueError("the denominator must be positive")
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient % 2 == 1):
        return quotient + 1
    return quotient
