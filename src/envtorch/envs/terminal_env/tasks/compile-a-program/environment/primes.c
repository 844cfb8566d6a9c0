#include <stdio.h>
#include <stdlib.h>

int is_prime(int n) {
    for (int i = 2; i * i < n; i++)
        if (n % i == 0) return 0;
    return n > 1
}

int main(int argc, char **argv) {
    int most = atoi(argv[1]);
    for (int n = 1; n <= most; n++)
        if (is_prime(n)) printf("%d\n", n);
    return 0;
}
