"""What a caller sees: round trips of blocking clients, sessions opened, HTTP, large observations."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from bench.contenders import (
    BARE_HTTP,
    HANDLER,
    INLINE,
    PICTURES,
    THEIR_PICTURES,
    THEIRS,
    THEIRS_ASYNC,
    THREAD,
    Contender,
    run_json,
    serving,
)
from bench.measure import Column, Effort, Measure
from bench.proc import cpu_seconds
from bench.records import Record

ROUND_TRIP = (
    Column("p50_us", "p50, µs", 0),
    Column("p99_us", "p99, µs", 0),
    Column("client_cpu_us", "client CPU, µs", 0),
    Column("server_cpu_us", "server CPU, µs", 0),
)


class OneCaller(Measure):
    """One client that calls again and again, each server with the client that belongs to it."""

    size = "sessions"
    columns = ROUND_TRIP
    sizes: tuple[int, ...] = (1,)

    @abstractmethod
    def job(self, size: int) -> dict[str, Any]:
        """What to tell the client."""

    def client(self, contender: Contender) -> str:
        if contender.module.startswith("bench.limits"):
            return "bench.clients.bare"
        return "bench.clients.theirs" if contender.is_theirs else "bench.clients.ours"

    def python(self, contender: Contender) -> str:
        return contender.python

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        with serving(contender) as server:
            for size in self.sizes:
                job = {
                    "url": f"http://127.0.0.1:{server.port}",
                    "port": server.port,
                    "seconds": effort.seconds,
                    **self.job(size),
                }
                before = cpu_seconds(server.pid)
                place = (self.key, contender.key, size, round_number)
                try:
                    told = run_json(self.client(contender), json.dumps(job), python=self.python(contender))
                except RuntimeError as error:
                    yield Record(*place, errors=[str(error)])
                    continue
                values = json.loads(told)
                spent = cpu_seconds(server.pid) - before
                calls = values.pop("calls") + job.get("warm_up", 50)
                yield Record(*place, values={**values, "server_cpu_us": spent / calls * 1e6})


class RoundTrip(OneCaller):
    key = "client"
    title = "One step by a blocking client"
    notes = (
        "Each framework's own blocking client on its own server; the limit is a socket and frames by hand."
    )
    in_quick = True

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (HANDLER, INLINE, THREAD, THEIRS, THEIRS_ASYNC)

    def job(self, size: int) -> dict[str, Any]:
        return {"what": "step"}


class Opening(OneCaller):
    key = "open"
    title = "Connect, reset, close"
    notes = "A session opened, reset and closed, one after another, by each framework's own blocking client."

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (HANDLER, INLINE, THREAD, THEIRS, THEIRS_ASYNC)

    def job(self, size: int) -> dict[str, Any]:
        return {"what": "open", "warm_up": 5}


class OverHttp(OneCaller):
    key = "http"
    title = "One step over HTTP"
    notes = (
        "`POST /step` on a kept connection, by the standard library's client for all. Ours goes on with the "
        "caller's episode; OpenEnv builds a new environment for every request."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (BARE_HTTP, INLINE, THREAD, THEIRS, THEIRS_ASYNC)

    def client(self, contender: Contender) -> str:
        return "bench.clients.http"

    def python(self, contender: Contender) -> str:
        return HANDLER.python

    def job(self, size: int) -> dict[str, Any]:
        return {}


class Large(OneCaller):
    key = "large"
    title = "A large observation, as text"
    size = "bytes"
    sizes = (1_000_000,)
    notes = "An observation of 1 MB of text, JSON on every wire, by each framework's own blocking client."

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (HANDLER, INLINE, THREAD, THEIRS, THEIRS_ASYNC)

    def job(self, size: int) -> dict[str, Any]:
        return {"what": "step", "size": size, "warm_up": 5}


class Arrays(OneCaller):
    key = "arrays"
    title = "An observation that is an array"
    size = "bytes"
    sizes = (84 * 84 * 4,)
    baseline = "openenv-pictures"
    notes = (
        "A picture of 84 x 84 x 4 bytes that reaches the caller as a numpy array: as a buffer in MessagePack "
        "with us; as lists in JSON with OpenEnv, which cannot send arrays. The limit sends as much text."
    )

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (HANDLER, PICTURES, THEIR_PICTURES)

    def job(self, size: int) -> dict[str, Any]:
        return {"what": "pictures", "size": size, "wire": "msgpack", "warm_up": 5}
