#!/bin/bash
set -e
cd /app/notes
last=$(git rev-list -n 1 HEAD -- recipe.txt)
git show "$last^:recipe.txt" > /app/recipe.txt
