"""The function is asked from outside, as a user without rights, with values that the agent did not see."""
import json
import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

CASES = [([100, 200], 0.0, 300), ([199], 0.19, 237), ([50], 0.01, 51), ([333, 333], 0.07, 713), ([], 0.5, 0)]
PROGRAM = "import sys, json; sys.path.insert(0, '/app'); import prices; print(json.dumps(prices.total(*json.loads(sys.argv[1]))))"
for prices, tax, wanted in CASES:
    command = ["python3", "-I", "-c", PROGRAM, json.dumps([prices, tax])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, **NOBODY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == wanted, (prices, tax, done.stdout)
open(3, "w").write("1")
