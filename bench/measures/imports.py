"""What it costs to import a client, and a server."""

import json
import subprocess
from collections.abc import Iterator

from bench.contenders import INTERPRETER, OUR_IMPORT, ROOT, THEIR_IMPORT, Contender
from bench.measure import Column, Effort, Measure
from bench.records import Record

TELL = """
import json, time
cpu_ms = time.process_time() * 1e3
status = open("/proc/self/status").read()
mb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024
import sys
print(json.dumps({"cpu_ms": cpu_ms, "mb": mb, "modules": len(sys.modules)}))
"""
TIMES = 3


class Imports(Measure):
    """The interpreter's own start is measured beside each import, and subtracted."""

    size = "processes"
    columns = (
        Column("cpu_ms", "CPU, ms", 0),
        Column("own_cpu_ms", "import alone, ms", 0),
        Column("mb", "memory, MB", 0),
        Column("own_mb", "import alone, MB", 0),
        Column("modules", "modules", 0),
    )
    baseline = THEIR_IMPORT.key
    imports: dict[str, str]

    def contenders(self, effort: Effort) -> tuple[Contender, ...]:
        return (INTERPRETER, OUR_IMPORT, THEIR_IMPORT)

    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]:
        place = (self.key, contender.key, 1, round_number)
        statement = self.imports.get(contender.key, "")
        try:
            runs = [(_run(contender, ""), _run(contender, statement)) for _ in range(TIMES)]
        except subprocess.CalledProcessError as error:
            yield Record(*place, errors=[error.stderr[-500:]])
            return
        bare, found = min((bare for bare, _ in runs), key=_cpu), min((found for _, found in runs), key=_cpu)
        if not statement:
            yield Record(*place, values=found)
            return
        own = {f"own_{name}": found[name] - bare[name] for name in ("cpu_ms", "mb")}
        yield Record(*place, values={**found, **own})


def _cpu(values: dict[str, float]) -> float:
    return values["cpu_ms"]


def _run(contender: Contender, statement: str) -> dict[str, float]:
    command = [contender.python, "-c", statement + TELL]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    values: dict[str, float] = json.loads(told.stdout)
    return values


class ClientImport(Imports):
    key = "import-client"
    title = "Importing the client"
    notes = (
        "A process that imports the class that clients derive from, and ends. CPU time and resident memory "
        f"(RSS) of the whole process, and of the import alone; the cheapest of {TIMES} runs in each round."
    )
    imports = {
        OUR_IMPORT.key: "from envtorch import EnvClient; EnvClient.reset",
        THEIR_IMPORT.key: "from openenv.core.env_client import EnvClient",
    }


class ServerImport(Imports):
    key = "import-server"
    title = "Importing the server"
    notes = "The same, of the function that makes a server's application."
    imports = {
        OUR_IMPORT.key: "from envtorch.server import create_app",
        THEIR_IMPORT.key: "from openenv.core.env_server.http_server import create_app",
    }
