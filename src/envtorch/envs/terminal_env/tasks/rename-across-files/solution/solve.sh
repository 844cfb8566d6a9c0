#!/bin/bash
set -e
cd /app/shop
sed -i 's/calc(amount, country)/tax_for(country, amount)/; s/import calc/import tax_for/' tax.py invoice.py
sed -i 's/tax.calc(sum(amounts), country)/tax.tax_for(country, sum(amounts))/' report.py
cd /app && python3 -m shop.main
