"""The proxy through which sessions reach what their allow-list names: a process of its own.

It is started as a bare interpreter with this package alone, so nothing here imports anything but the standard
library.
"""
