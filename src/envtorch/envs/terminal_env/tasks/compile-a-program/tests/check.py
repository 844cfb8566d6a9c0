"""What was corrected is compiled anew, and has to print the same as the program that the agent compiled."""
import os
import subprocess
import tempfile

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}


def check(program):
    for most in (2, 30, 121, 1000):
        done = subprocess.run([program, str(most)], capture_output=True, text=True, timeout=20, **NOBODY)
        wanted = [n for n in range(2, most + 1) if all(n % i for i in range(2, n))]
        assert list(map(int, done.stdout.split())) == wanted, (program, most)


with open("/app/primes", "rb") as file:
    assert file.read(4) == b"\x7fELF", "/app/primes is not compiled"
check("/app/primes")
folder = tempfile.mkdtemp(dir="/dev/shm")
os.chmod(folder, 0o777)
anew = f"{folder}/primes"
subprocess.run(["gcc", "-o", anew, "/app/primes.c"], check=True, timeout=20, cwd=folder, **NOBODY)
check(anew)
open(3, "w").write("1")
