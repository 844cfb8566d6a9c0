#!/bin/bash
# The reward is 1 when check.py ends well, and 0 when it does not.
mkdir -p /logs/verifier
if python3 -I /tests/check.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
