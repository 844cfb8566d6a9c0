import pathlib
import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

PROGRAM = (
    "import sys; sys.path.insert(0, '/app')\n"
    "from shop.tax import tax_for\n"
    "from shop.invoice import invoice\n"
    "from shop.report import report\n"
    "print(tax_for('ch', 500), invoice([10, 990], 'ch'), report([700]))"
)
done = subprocess.run(["python3", "-I", "-c", PROGRAM], capture_output=True, text=True, timeout=20, **NOBODY)
assert done.stdout.strip() == "40 1079 {'de': 133, 'ch': 56, 'us': 0}", done.stdout + done.stderr
texts = [path.read_text() for path in pathlib.Path("/app/shop").glob("*.py")]
assert not any("calc" in text for text in texts)
assert sum("tax_for" in text for text in texts) == 3
open(3, "w").write("1")
