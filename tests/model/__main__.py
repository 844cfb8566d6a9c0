"""Check the session model within its large bounds, and print what was found: `make test-model`."""

import sys
import time

from tests.model.session_model import EQUAL_CONTENTS, LARGE_SCENARIOS, SCENARIOS, check
from tests.model.session_state import Fault


def main() -> int:
    """How many scenarios did not come out as they must."""
    failed = 0
    print(f"{'scenario':36} {'states':>9} {'events':>7} {'CPU s':>6}")
    for name, scenario in {**SCENARIOS, **LARGE_SCENARIOS}.items():
        began = time.process_time()
        found = check(scenario)
        print(f"{name:36} {found.states:9,} {found.depth:7} {time.process_time() - began:6.1f}", flush=True)
        if found.counterexample is not None:
            print(found.counterexample)
            failed += 1
    for fault in Fault:
        print(f"\nWithout it: {fault.value}")
        traces = [check(scenario, frozenset({fault})).counterexample for scenario in SCENARIOS.values()]
        shortest = min(
            (trace for trace in traces if trace is not None), key=lambda t: len(t.events), default=None
        )
        print(shortest or "no counterexample: the model does not need this part")
        failed += shortest is None
    print("\nNot promised: two holders that send equal contents under one id")
    print(check(EQUAL_CONTENTS).counterexample)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
