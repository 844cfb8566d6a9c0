#!/bin/bash
set -e
cd /app
awk '$4 == "failed" {n[$3]++} END {for (a in n) print n[a], a}' auth.log | sort -rn | head -1 | awk '{print $2, $1}' > answer.txt
