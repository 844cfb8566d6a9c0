import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}

assert open("/app/answer.txt").read().strip() == "good day, Ada, from package 42"
done = subprocess.run(["/usr/bin/greeter", "Grace"], capture_output=True, text=True, timeout=20, **NOBODY)
assert done.stdout.strip() == "good day, Grace, from package 42", done.stdout
open(3, "w").write("1")
