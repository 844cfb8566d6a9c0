"""What is measured: each module has one measurement, which `bench.registry` lists."""
