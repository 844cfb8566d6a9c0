#!/bin/bash
# The reward is 0 until check.py has come to its end and writes 1 to descriptor 3.
echo 0 > /logs/verifier/reward.txt
exec python3 -I /tests/check.py 3<> /logs/verifier/reward.txt
