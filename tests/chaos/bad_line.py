"""A proxy in a process of its own that cuts, resets, half-closes and stalls connections at random.

    python -m tests.chaos.bad_line SEED FAULTS_PER_SECOND

It prints its port. On its standard input: `target PORT` says where to forward to, `quiet` ends the faults;
at the end of the input it prints how many of each there were, and ends.
"""

import asyncio
import json
import random
import sys

from tests.faults.proxy import Fault, Proxy, proxy_to


async def harm(proxy: Proxy, dice: random.Random, per_second: float) -> None:
    kinds = list(Fault)
    while True:
        await asyncio.sleep(dice.expovariate(per_second))
        proxy.break_one(dice.choice(kinds), dice)


async def main(seed: int, per_second: float) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with proxy_to(0) as proxy:
        print(proxy.port, flush=True)
        harming = asyncio.ensure_future(harm(proxy, random.Random(seed), per_second))
        async for line in orders:
            match line.split():
                case [b"target", port]:
                    proxy.target(int(port))
                case [b"quiet"]:
                    harming.cancel()
        harming.cancel()
        print(json.dumps({kind.value: count for kind, count in proxy.broken.items()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
