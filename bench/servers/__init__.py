"""The servers that are measured: each a module to run, `python -m bench.servers.NAME FD KIND`."""
