text = open("/app/recipe.txt").read()
assert text.strip() == "flour, water, salt, yeast", text
open(3, "w").write("1")
