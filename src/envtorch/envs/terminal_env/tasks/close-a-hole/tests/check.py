"""The names that are tried make files in a folder that the agent cannot have known."""
import os
import subprocess
import tempfile

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

folder = tempfile.mkdtemp(dir="/dev/shm")
os.chmod(folder, 0o777)
subprocess.run(["touch", f"{folder}/mark"], check=True, **NOBODY)  # so a command that a name runs shows
os.unlink(f"{folder}/mark")


def ask(name):
    command = ["python3", "-I", "/app/lookup.py", name]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, **NOBODY).stdout.strip()


assert ask("ada") == "ada:100" and ask("a.c") == "a.c:300" and ask("eve") == "unknown"
touch = f"touch {folder}/mark"
for name in (f"x'; {touch}; '", f'x"; {touch}; "', f"x; {touch}", f"$({touch})", f"`{touch}`", f"x\n{touch}\n"):
    assert ask(name) == "unknown", name
    assert os.listdir(folder) == [], name
assert ask("x' /etc/passwd; echo '") == "unknown" and ask("root") == "unknown"
assert ask(".*") == "unknown" and ask("a") == "unknown" and ask("") == "unknown"
open(3, "w").write("1")
