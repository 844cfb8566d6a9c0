import subprocess

assert open("/app/answer.txt").read().strip() == "good day, Ada, from package 42"
done = subprocess.run(["/usr/bin/greeter", "Grace"], capture_output=True, text=True, timeout=20, user=65534)
assert done.stdout.strip() == "good day, Grace, from package 42", done.stdout
