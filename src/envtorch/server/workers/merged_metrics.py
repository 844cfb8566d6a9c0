"""`/metrics` of a server of several workers: everybody's numbers, whichever worker is asked.

Each number keeps the worker it comes from, as a label. A sum over workers would go backwards when one is
replaced, which Prometheus takes for a restart of all.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envtorch.errors import EnvTorchError
from envtorch.server.workers.peers import SECRET_HEADER, WorkerPeers

__all__ = ["gather", "merge"]

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""How long a worker may take to tell its numbers."""


async def gather(app: ASGIApp, peers: WorkerPeers, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what this worker's application answers, and with the same of the others."""
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, keep)
    start, bodies = messages[0], messages[1:]
    if start["status"] != 200:
        for message in messages:
            await send(message)
        return
    texts = {peers.worker: b"".join(message.get("body", b"") for message in bodies)}
    others = peers.others()
    found = await asyncio.gather(*(_numbers(peers, worker, scope) for worker in others))
    texts.update({worker: text for worker, text in zip(others, found, strict=True) if text is not None})
    body = merge({worker: text.decode() for worker, text in texts.items()})
    headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({**start, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _numbers(peers: WorkerPeers, worker: int, scope: Scope) -> bytes | None:
    """The numbers of another worker; None when it does not tell them: it may be starting."""
    known = [(n, v) for n, v in scope["headers"] if n in (b"authorization", b"host")]
    secret = (SECRET_HEADER.encode(), peers.secret.encode())
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            peers.request(worker, b"GET", scope["path"].encode(), [*known, secret]) as response,
        ):
            return await response.aread() if response.status == 200 else None
    except (EnvTorchError, TimeoutError):
        logger.info("worker %d does not tell its numbers", worker)
        return None


def merge(texts: Mapping[int, str]) -> bytes:
    """Prometheus' text of several workers as one, each sample labelled with its worker."""
    families: dict[str, Metric] = {}
    for worker, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "worker": str(worker)}
                merged.add_sample(sample.name, labels, sample.value)
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
