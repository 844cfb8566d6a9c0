wanted = """name,email,age
Ada,ada@example.org,36
Dee,dee@example.org,41
Gus,gus@example.org,0
Hal,hal@example.org,150
Ivy,ivy@example.org,29
"""
text = open("/app/clean.csv", newline="").read().replace("\r\n", "\n")
assert text == wanted, text
open(3, "w").write("1")
