"""An owner that can be killed: starts the probe and says how far it is, one word a line.

python -m envtorch.testing.provider_owner MODULE:SUBJECT STAGE [MARK]

The probe has MARK in its environment, as PROBE_MARK. It stays at STAGE until its standard input ends, then
exits without stopping anything by itself.
"""

import sys
import threading

from envtorch.errors import EnvTorchError
from envtorch.testing.provider import Probe, ProviderSubject

MARK = "PROBE_MARK"
SECRET = "PROBE_SECRET_OF_THE_OWNER"  # noqa: S105 - the name of a variable that must not travel


def say(stage: str, rest: str = "") -> None:
    sys.stdout.write(f"{stage} {rest}\n")
    sys.stdout.flush()


def main(importable: str, last: str, mark: str = "none") -> None:
    subject = ProviderSubject.load(importable)
    provider = subject.make()
    say("made")
    stubborn = {"PROBE_STUBBORN": "1"} if last == "stopping" else {}
    url = subject.start(provider, env_vars={MARK: mark, **stubborn})
    say("started", url)
    if last != "started":
        subject.wait(provider, url)
        say("ready", url)
    if last == "environment":
        say("environment", str(Probe(provider, url).get(f"/environ/{SECRET}").status_code))
    if last == "stopping":
        stopping = threading.Thread(target=provider.close, daemon=True)
        stopping.start()
        say("stopping", url)
    sys.stdin.read()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EnvTorchError as error:
        say("failed", " ".join(str(error).split()))
        raise
