import pathlib
import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

PROGRAM = (
    "import inspect, runpy, sys; sys.path.insert(0, '/app')\n"
    "from shop.tax import tax_for\n"
    "from shop.invoice import invoice\n"
    "from shop.report import report\n"
    "print(*inspect.signature(tax_for).parameters)\n"
    "print(tax_for('ch', 500), invoice([10, 990], 'ch'), report([700]))\n"
    "runpy.run_module('shop.main', run_name='__main__')"
)
PRINTED = """country amount
40 1079 {'de': 133, 'ch': 56, 'us': 0}
416
{'de': 570, 'ch': 240, 'us': 0}"""
done = subprocess.run(["python3", "-I", "-c", PROGRAM], capture_output=True, text=True, timeout=20, **NOBODY)
assert done.stdout.strip() == PRINTED, done.stdout + done.stderr
texts = {str(path): path.read_text() for path in pathlib.Path("/app/shop").rglob("*.py")}
assert not [path for path, text in texts.items() if "calc" in text]
assert sum("tax_for" in text for text in texts.values()) == 3
open(3, "w").write("1")
