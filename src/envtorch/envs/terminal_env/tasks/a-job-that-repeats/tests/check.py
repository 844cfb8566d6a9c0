import os
import shutil
import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

shutil.rmtree("/app/backups", ignore_errors=True)
subprocess.run(["chown", "-R", "65534:65534", "/app"], check=True)  # the script runs as a user without rights


def call():
    return subprocess.run(["bash", "/app/backup.sh"], cwd="/", timeout=20, **NOBODY).returncode


def add():
    """As the same user: the file may be a link to another by now."""
    subprocess.run(["bash", "-c", "echo more >> /app/data/a.txt"], check=True, timeout=20, **NOBODY)


def there():
    return sorted(map(int, os.listdir("/app/backups")))


assert call() == 0 and there() == [1]
assert open("/app/backups/1/deep/b.txt").read() == "second\n"
for _ in range(11):
    add()
    assert call() == 0
assert there() == [10, 11, 12], there()
assert open("/app/backups/12/a.txt").read().count("more") == 11
shutil.move("/app/data", "/app/moved")
assert call() == 1 and there() == [10, 11, 12]
open(3, "w").write("1")
