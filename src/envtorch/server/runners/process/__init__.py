"""`isolation="process"`: each session's environment in a process of its own.

server ── keeper ── zygote        the keeper is parent of all: it reaps, kills, and takes all with it
             ├───── session       forked by the zygote, then let go to the keeper
             └───── session       ... or forked by another session
"""
