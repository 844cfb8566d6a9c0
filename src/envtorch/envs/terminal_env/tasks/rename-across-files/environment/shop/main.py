from shop.invoice import invoice
from shop.report import report

print(invoice([100, 250], "de"))
print(report([1000, 2000]))
