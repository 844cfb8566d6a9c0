import subprocess

NOBODY = {"user": 65534, "group": 65534, "extra_groups": ()}
PROGRAM = '#!/bin/sh\necho "good day, $1, from $(cat /etc/greeter.conf)"\n'

query = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", "greeter"]
shown = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout
assert shown == "installed 1.0", shown
assert open("/usr/bin/greeter").read() == PROGRAM, "it is not the package's"
assert open("/app/answer.txt").read().strip() == "good day, Ada, from package 42"
done = subprocess.run(["/usr/bin/greeter", "Grace"], capture_output=True, text=True, timeout=20, **NOBODY)
assert done.stdout.strip() == "good day, Grace, from package 42", done.stdout
open(3, "w").write("1")
