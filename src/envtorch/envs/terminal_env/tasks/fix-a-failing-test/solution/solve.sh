#!/bin/bash
set -e
cd /app
cat > prices.py <<'E'
from decimal import ROUND_HALF_UP, Decimal


def total(prices, tax):
    """The sum of prices in cents with tax added, rounded half up to a whole cent."""
    exact = Decimal(sum(prices)) * (1 + Decimal(str(tax)))
    return int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP))
E
python3 run_tests.py
