"""Money: prices, rating, the ledger, and what each scope has spent.

Beside the usual files: `price_book.py` (which price holds), `rating.py` (counts to money) and
`ledger.py` (accounts, entries and budgets); README.md has the semantics.
"""
