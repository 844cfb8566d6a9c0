from shop.tax import calc


def invoice(lines, country):
    return sum(amount + calc(amount, country) for amount in lines)
