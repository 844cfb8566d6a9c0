def total(prices, tax):
    """The sum of prices in cents with tax added, rounded half up to a whole cent."""
    return int(sum(prices) * (1 + tax))
