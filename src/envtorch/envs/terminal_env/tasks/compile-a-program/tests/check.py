import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

for most in (2, 30, 121, 1000):
    done = subprocess.run(["/app/primes", str(most)], capture_output=True, text=True, timeout=20, **NOBODY)
    wanted = [n for n in range(2, most + 1) if all(n % i for i in range(2, n))]
    assert list(map(int, done.stdout.split())) == wanted, most
open(3, "w").write("1")
