import random

random.seed(5)
addresses = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(300)]
with open("/app/auth.log", "w") as file:
    for second in range(20000):
        address = "10.0.0.77" if random.random() < 0.03 else random.choice(addresses)
        outcome = "failed" if random.random() < (0.8 if address == "10.0.0.77" else 0.2) else "ok"
        print(f"{second:05} user{second % 40} {address} {outcome}", file=file)
