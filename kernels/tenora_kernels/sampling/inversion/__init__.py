"""Inverting every row's cut distribution on a GPU, without sorting and without a host sync.

Probabilities are positive floats, ordered as their bits. A search finds the element at which a
cumulative mass is reached, digit by digit of its bits: one pass adds the masses of the elements
that share the digits found so far into 1024 bins of the next digit, one program for each row picks
the bin. Three digits are all bits; equal elements are told apart by index. The cut (top-k,
top-p) is one search and the choice another, so a row is read nine times, whatever its shape.

Masses are integers: sums are exact, and no bit depends on the order in which programs add.
"""
