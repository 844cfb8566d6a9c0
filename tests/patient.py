"""httpx's calls, with a timeout that a loaded machine keeps instead of the usual five seconds."""

import functools

import httpx

from tests.support import PATIENCE_S

get = functools.partial(httpx.get, timeout=PATIENCE_S)
post = functools.partial(httpx.post, timeout=PATIENCE_S)
delete = functools.partial(httpx.delete, timeout=PATIENCE_S)
request = functools.partial(httpx.request, timeout=PATIENCE_S)
Client = functools.partial(httpx.Client, timeout=PATIENCE_S)
