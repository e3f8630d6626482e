"""What an uploaded adapter is: inspected, put into one canonical form, and found again by digest.

No module of this package imports torch. `README.md` tells the life of an upload.
"""
