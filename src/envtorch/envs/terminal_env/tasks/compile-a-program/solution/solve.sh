#!/bin/bash
set -e
cd /app
sed -i 's/i \* i < n/i * i <= n/; s/return n > 1$/return n > 1;/' primes.c
gcc -O2 -o primes primes.c
