set -e
mkdir /app/notes && cd /app/notes
git init -q .
git config user.name builder && git config user.email builder@example.org
for n in 1 2 3 4 5 6 7 8; do
    echo "note $n" > note$n.txt
    [ $n = 2 ] && echo "flour, water" > recipe.txt
    [ $n = 4 ] && echo "flour, water, salt, yeast" > recipe.txt
    [ $n = 6 ] && rm recipe.txt
    git add -A && git commit -qm "change $n"
done
