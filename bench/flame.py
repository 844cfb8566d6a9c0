"""A flame graph of the server's hot path: `python -m bench.flame [KIND]`, into `bench/flame.svg`.

The server steps 64 sessions as fast as the load generator can ask, while py-spy looks at it from outside.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.contenders import BY_KEY, CORES, ROOT, serving, start
from bench.load import Load
from bench.measures.steps import play

SECONDS = 10
OPENING_S = 3
"""Until the load generator has opened its sessions."""
RATE_HZ = 250
FOLDER = ROOT / "bench"


def main(kind: str = "inline") -> None:
    picture = FOLDER / ("flame.svg" if kind == "inline" else f"flame-{kind}.svg")
    with serving(BY_KEY[kind]) as server:
        load = Load(server.port, server.pid, sessions=64, seconds=SECONDS + OPENING_S + 2.0)
        loading = threading.Thread(target=play, args=[load])
        loading.start()
        time.sleep(OPENING_S)
        command = [
            *(str(Path(sys.executable).with_name("py-spy")), "record", "--native", "--pid", str(server.pid)),
            *("--output", str(picture), "--duration", str(SECONDS), "--rate", str(RATE_HZ)),
        ]
        recorder = start(command, CORES.load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = recorder.communicate(timeout=120)
        loading.join()
    if recorder.returncode != 0:
        sys.exit(f"py-spy could not record: {said}")
    _entitle(picture, f"{BY_KEY[kind].name}, 64 sessions, {SECONDS} s at {RATE_HZ} Hz")
    print(f"{picture.relative_to(ROOT)}: {SECONDS} s of {BY_KEY[kind].name}, 64 sessions")


def _entitle(picture: Path, title: str) -> None:
    """Say what is shown, where py-spy put the command that it was called with."""
    titled = re.sub(
        r'(<text id="title"[^>]*>)[^<]*', lambda found: found[1] + title, picture.read_text(), count=1
    )
    picture.write_text(titled)


if __name__ == "__main__":
    main(*sys.argv[1:])
