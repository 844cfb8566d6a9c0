"""What container grade promises beside containment, checked in this process; prints `ok` at the end.

python -m tests.sandbox.container_checks
"""

import os

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Outcome, Policy, Sandbox


def main() -> None:
    policy = Policy(namespaces=False, timeout_s=20)
    with Sandbox(policy) as sandbox:
        report = sandbox.report()
        assert report.grade == "container"
        assert report.layers["user namespace"] == "unavailable: switched off by the policy"
        assert report.layers["seccomp"] == report.layers["landlock"] == "on"
        assert sandbox.run("import xml.dom.minidom, subprocess, sys\nx = 41\nx + 1").json() == 42
        assert sandbox.run("open('f', 'w').write('kept')\nx").json() == 41
        code = "subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout"
        assert sandbox.run(code).json() == "1\n"
        assert sandbox.read_file("f") == b"kept"
        assert sandbox.run("import os; os.getuid()").json() != 0
        for attempt in (sandbox.fork, lambda: Sandbox(Policy(namespaces=False, require=frozenset({"fork"})))):
            with pytest.raises(ConfigurationError, match="switched off by the policy"):
                attempt()
        assert sandbox.grade("float(submission.read_file('f') == b'kept')").score == 1.0
        assert sandbox.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        sandbox.run("if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(1000)")
        home = sandbox.run("os.path.dirname(os.getcwd())").json()
    assert not os.path.exists(home)
    print("ok")


if __name__ == "__main__":
    main()
