"""The conversation between an environment and its clients, without any I/O.

Frames come in as text or bytes and leave as bytes; nothing here opens a socket, starts a thread or
reads a clock. The shells in `envtorch.server` and `envtorch.client` do that, and little else.
"""
