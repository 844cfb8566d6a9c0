"""Counted anew: the log must be as it was."""
import random

random.seed(5)
addresses = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(300)]
counts = {}
for second in range(20000):
    address = "10.0.0.77" if random.random() < 0.03 else random.choice(addresses)
    if random.random() < (0.8 if address == "10.0.0.77" else 0.2):
        counts[address] = counts.get(address, 0) + 1
best = max(counts, key=counts.get)
assert open("/app/answer.txt").read().split() == [best, str(counts[best])]
open(3, "w").write("1")
