from prices import total

assert total([100, 200], 0.0) == 300
assert total([199], 0.19) == 237
assert total([], 0.19) == 0
print("all tests passed")
