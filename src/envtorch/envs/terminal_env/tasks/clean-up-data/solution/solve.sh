#!/bin/bash
set -e
python3 - <<'E'
import csv
rows = {}
with open("/app/people.csv", newline="") as file:
    for row in csv.DictReader(file):
        name, email, age = (row[key].strip() for key in ("name", "email", "age"))
        email = email.lower()
        parts = email.split("@")
        if len(parts) == 2 and all(parts) and age.isdigit() and int(age) <= 150:
            rows.setdefault(email, (name, email, age))
with open("/app/clean.csv", "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", "email", "age"])
    writer.writerows(rows[email] for email in sorted(rows))
E
